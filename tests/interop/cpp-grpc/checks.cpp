// A producer, a simple consumer and a push consumer of version 5 with their defaults, given nothing but an access point.
// Arguments: the access point, a topic, a word that both groups begin with, and "plaintext" to do without TLS. It prints "passed
// connect" when all have met, then "acknowledged COUNT" now and then, until it reads a line; then everything acknowledged must arrive
// at both consumers.
#include <rocketmq/Logger.h>
#include <rocketmq/Producer.h>
#include <rocketmq/PushConsumer.h>
#include <rocketmq/SimpleConsumer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

using namespace ROCKETMQ_NAMESPACE;
using namespace std::chrono_literals;

namespace {

constexpr int FIRST = 8;
constexpr auto PATIENCE = 90s;

class Bodies {
 public:
  void add(const std::string& body) {
    std::lock_guard<std::mutex> held(lock_);
    bodies_.insert(body);
  }

  std::set<std::string> all() const {
    std::lock_guard<std::mutex> held(lock_);
    return bodies_;
  }

 private:
  mutable std::mutex lock_;
  std::set<std::string> bodies_;
};

class Failures {
 public:
  void add(const std::error_code& kind) {
    std::lock_guard<std::mutex> held(lock_);
    ++counts_[kind.message()];
  }

  std::string text() const {
    std::lock_guard<std::mutex> held(lock_);
    std::string text;
    for (const auto& each : counts_) {
      text += " " + each.first + "=" + std::to_string(each.second);
    }
    return text;
  }

 private:
  mutable std::mutex lock_;
  std::map<std::string, int> counts_;
};

std::mutex printing;
Bodies acknowledged, taken, pushed;
Failures failures;
std::atomic<int> acks{0};
std::atomic<bool> stopped{false};

void say(const std::string& line) {
  std::lock_guard<std::mutex> held(printing);
  std::cout << line << std::endl;
}

void pause(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

bool has_all(const Bodies& bodies) {
  const auto found = bodies.all(), wanted = acknowledged.all();
  return std::includes(found.begin(), found.end(), wanted.begin(), wanted.end());
}

void await(const std::string& what, const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + PATIENCE;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error("not within " + std::to_string(std::chrono::seconds(PATIENCE).count()) + " s: " + what);
    }
    pause(20ms);
  }
}

void report(const std::string& name, const std::function<void()>& promise) {
  try {
    promise();
    say("passed " + name);
  } catch (const std::exception& failed) {
    say("failed " + name + ": " + failed.what());
  }
}

bool send(Producer& producer, const std::string& topic, int number) {
  const auto body = std::to_string(number);
  std::error_code failed;
  producer.send(Message::newBuilder().withTopic(topic).withBody(body).build(), failed);
  if (failed) {
    failures.add(failed);
    pause(20ms);
    return false;
  }
  acknowledged.add(body);
  return true;
}

void receive(SimpleConsumer& consumer) {
  while (true) {
    std::vector<MessageConstSharedPtr> messages;
    std::error_code failed;
    consumer.receive(32, 20s, failed, messages);
    if (failed) {
      failures.add(failed);
      pause(20ms);
    }
    for (const auto& each : messages) {
      taken.add(each->body());  // an ack whose answer is lost may count all the same
      std::error_code refused;
      consumer.ack(*each, refused);
      if (refused) {
        failures.add(refused);
      } else {
        ++acks;
      }
    }
  }
}

}  // namespace

int main(int count, char* words[]) {
  const std::string topic = words[2], group = words[3];
  const bool tls = count < 5 || words[4] != std::string("plaintext");
  const auto place = Configuration::newBuilder().withEndpoints(words[1]).withSsl(tls).build();
  getLogger().setConsoleLevel(Level::Error);
  getLogger().init();

  auto pusher = PushConsumer::newBuilder()
                    .withConfiguration(place)
                    .withGroup(group + "-push")
                    .subscribe(topic, FilterExpression("*"))
                    .withListener([](const Message& message) {
                      pushed.add(message.body());
                      return ConsumeResult::SUCCESS;
                    })
                    .build();
  auto consumer = SimpleConsumer::newBuilder()
                      .withConfiguration(place)
                      .withGroup(group + "-simple")
                      .withAwaitDuration(5s)
                      .subscribe(topic, FilterExpression("*"))
                      .build();
  auto producer = Producer::newBuilder().withConfiguration(place).withTopics({topic}).build();
  report("connect", [&] {
    for (int number = 0; number < FIRST; ++number) {
      if (!send(producer, topic, number)) {
        throw std::runtime_error("a send failed:" + failures.text());
      }
    }
    std::thread(receive, std::ref(consumer)).detach();
    await("both consumers have the first messages",
          [] { return acks >= FIRST && has_all(taken) && has_all(pushed); });
    std::thread([&] {
      for (int number = FIRST; !stopped; ++number) {
        while (!stopped && !send(producer, topic, number)) {
        }
        pause(5ms);
      }
    }).detach();
  });
  std::thread([] {
    while (!stopped) {
      say("acknowledged " + std::to_string(acknowledged.all().size()));
      pause(100ms);
    }
  }).detach();
  std::string line;
  std::getline(std::cin, line);
  stopped = true;
  pause(500ms);
  say("acknowledged " + std::to_string(acknowledged.all().size()) + " in the end, failed attempts:" + failures.text());
  report("survive-simple", [] { await("the simple consumer has all", [] { return has_all(taken); }); });
  report("survive-push", [] { await("the push consumer has all", [] { return has_all(pushed); }); });
  std::_Exit(0);
}
