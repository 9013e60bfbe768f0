/* A broker that costs as little as one can, to see what a client leaves a broker to gain: it stores nothing.
 *
 *   nothing PORT BODY_BYTES [SENDS_GATHER_US [PULLS_GATHER_US [FILE]]]
 *
 * It listens on loopback, and is its own name server. Sends (10, 310, 320) are counted and answered at once, in one
 * write for all that one read brought; pulls (11) get as many messages as were counted, each with a body of BODY_BYTES, the same for
 * all, and wait where there is none. With the times, sends are not looked at, and pulls that wait are not answered, sooner than so
 * long after the last time. With FILE, what is received goes there, over zeros that were written before, and over itself again, and a
 * sync comes before the answers of a turn: one thread does all of it, so nobody is woken but by the network and the disk. For clients
 * whose headers are JSON, which it trusts.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES (1 << 22)
#define MOST_HELD 4096
#define MOST_QUEUES 64
#define MOST_TOPICS 64
#define MOST_PULLED 32
#define MOST_EVENTS 64
#define FILE_BYTES (64 << 20)
#define LEAST_GATHERED 4 /* sends of a turn, from which on the next ones are waited for */

struct connection {
    int socket;
    char *in, *out;
    size_t in_length, out_length, out_size;
};

struct topic {
    char name[128];
    int queues;
    long long counts[MOST_QUEUES];
    char *record; /* one stored message, and how long it is */
    size_t record_bytes;
};

struct held { /* a pull that waits */
    struct connection *from;
    struct topic *topic; /* NULL: for ever */
    int queue;
    long long opaque, offset, most;
};

static struct topic topics[MOST_TOPICS];
static int topic_count, body_bytes, port, poller;
static struct held held[MOST_HELD];
static int held_count;
static char client_id[128];
static uint64_t sends_gather_ns, pulls_gather_ns, sends_at_ns, pulls_at_ns;
static int last_sends, turn_sends;
static int file = -1; /* where what is received goes */
static off_t file_at;
static struct connection *unanswered[MOST_EVENTS]; /* of this turn, where there is a file */
static int unanswered_count;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void fail(const char *why) {
    fprintf(stderr, "%s: %s\n", why, strerror(errno));
    exit(1);
}

static uint32_t get32(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static char *put32(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
    return at + 4;
}

static char *put64(char *at, uint64_t value) {
    return put32(put32(at, (uint32_t)(value >> 32)), (uint32_t)value);
}

/* The text behind a word of a header, up to its closing quote; nothing where there is none. */
static size_t text(const char *header, size_t length, const char *word, char *to, size_t size) {
    const char *at = memmem(header, length, word, strlen(word)), *end;
    to[0] = 0;
    if (!at)
        return 0;
    at += strlen(word);
    end = memchr(at, '"', (size_t)(header + length - at));
    if (!end || (size_t)(end - at) >= size)
        return 0;
    memcpy(to, at, (size_t)(end - at));
    to[end - at] = 0;
    return (size_t)(end - at);
}

static struct topic *find_topic(const char *header, size_t length, const char *word) {
    char name[128];
    if (text(header, length, word, name, sizeof name))
        for (int i = 0; i < topic_count; i++)
            if (!strcmp(topics[i].name, name))
                return &topics[i];
    return NULL;
}

/* A record of the log, as a pull brings it. */
static void make_record(struct topic *topic) {
    char properties[256];
    int property_bytes = snprintf(properties, sizeof properties,
                                  "UNIQ_KEY\1" "7F0000010001018B4AAC4B6A1B2C0000\2CLUSTER\1nothing\2WAIT\1true\2TAGS\1bench\2");
    size_t topic_bytes = strlen(topic->name), record_bytes = 91 + (size_t)body_bytes + topic_bytes + (size_t)property_bytes;
    topic->record_bytes = record_bytes;
    topic->record = calloc(1, record_bytes);
    char *at = put32(topic->record, (uint32_t)record_bytes);
    at = put32(at, 0xdaa320a7u);
    at = put32(at, 0); /* nobody checks */
    at += 4 + 4 + 8 + 8 + 4;
    uint64_t now_ms = (uint64_t)time(NULL) * 1000;
    at = put64(at, now_ms);
    at = put32(put32(at, 0x7f000001u), 1);
    at = put64(at, now_ms);
    at = put32(put32(at, 0x7f000001u), (uint32_t)port);
    at += 4 + 8;
    at = put32(at, (uint32_t)body_bytes);
    memset(at, 'x', (size_t)body_bytes);
    at += body_bytes;
    *at++ = (char)topic_bytes;
    memcpy(at, topic->name, topic_bytes);
    at += topic_bytes;
    *at++ = (char)(property_bytes >> 8);
    *at++ = (char)property_bytes;
    memcpy(at, properties, (size_t)property_bytes);
}

static char *room(struct connection *c, size_t bytes) {
    if (c->out_length + bytes > c->out_size) {
        c->out_size = 2 * (c->out_length + bytes);
        c->out = realloc(c->out, c->out_size);
    }
    return c->out + c->out_length;
}

/* An answer's head, in front of so many bytes of body, for which there is room behind it. */
static char *answer(struct connection *c, int code, long long opaque, const char *ext, const char *remark, size_t body) {
    char header[1024 + 64 * MOST_PULLED];
    int length = snprintf(header, sizeof header,
                          "{\"code\":%d,\"extFields\":{%s},\"flag\":1,\"language\":\"JAVA\",\"opaque\":%lld%s%s%s,"
                          "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":477}",
                          code, ext, opaque, *remark ? ",\"remark\":\"" : "", remark, *remark ? "\"" : "");
    char *at = room(c, 8 + (size_t)length + body);
    at = put32(put32(at, (uint32_t)(4 + (size_t)length + body)), (uint32_t)length);
    memcpy(at, header, (size_t)length);
    c->out_length += 8 + (size_t)length + body;
    return at + length;
}

static void answer_text(struct connection *c, long long opaque, const char *body) {
    memcpy(answer(c, 0, opaque, "", "", strlen(body)), body, strlen(body));
}

static void send_out(struct connection *c) {
    size_t sent = 0;
    while (sent < c->out_length) {
        ssize_t written = write(c->socket, c->out + sent, c->out_length - sent);
        if (written > 0)
            sent += (size_t)written;
        else if (errno == EAGAIN) { /* the peer reads; all that is asked for has its bounds */
            fd_set one;
            FD_ZERO(&one);
            FD_SET(c->socket, &one);
            select(c->socket + 1, NULL, &one, NULL, NULL);
        } else
            break;
    }
    c->out_length = 0;
}

/* The number behind a word of a header, 0 where there is none. */
static long long number(const char *header, size_t length, const char *word) {
    const char *at = memmem(header, length, word, strlen(word));
    return at ? atoll(at + strlen(word)) : 0;
}

static void give(struct connection *c, const struct topic *topic, int queue, long long opaque, long long offset, long long most) {
    long long there = topic->counts[queue] - offset, given = there < most ? there : most;
    char ext[256];
    snprintf(ext, sizeof ext,
             "\"suggestWhichBrokerId\":\"0\",\"nextBeginOffset\":\"%lld\",\"minOffset\":\"0\",\"maxOffset\":\"%lld\"", offset + given,
             topic->counts[queue]);
    char *at = answer(c, 0, opaque, ext, "FOUND", (size_t)given * topic->record_bytes);
    for (long long i = 0; i < given; i++, at += topic->record_bytes) {
        memcpy(at, topic->record, topic->record_bytes);
        put32(at + 12, (uint32_t)queue);
        put64(at + 20, (uint64_t)(offset + i));
        put64(at + 28, (uint64_t)((offset + i) * topic->queues + queue) * topic->record_bytes);
    }
}

static void give_nothing(struct connection *c, const struct topic *topic, int queue, long long opaque, long long offset) {
    char ext[256];
    snprintf(ext, sizeof ext,
             "\"suggestWhichBrokerId\":\"0\",\"nextBeginOffset\":\"%lld\",\"minOffset\":\"0\",\"maxOffset\":\"%lld\"", offset,
             topic->counts[queue]);
    answer(c, 19, opaque, ext, "OFFSET_OVERFLOW_ONE", 0);
}

static void give_held(void) {
    struct connection *given_to[MOST_HELD];
    int left = 0, given = 0;
    for (int i = 0; i < held_count; i++) {
        struct held *h = &held[i];
        if (h->from->socket < 0)
            continue;
        if (h->topic && h->topic->counts[h->queue] > h->offset) {
            give(h->from, h->topic, h->queue, h->opaque, h->offset, h->most);
            given_to[given++] = h->from;
        } else
            held[left++] = *h;
    }
    held_count = left;
    for (int i = 0; i < given; i++)
        send_out(given_to[i]); /* one write for all that a connection gets */
}

static void pull(struct connection *c, const char *header, size_t length, long long opaque) {
    struct topic *topic = find_topic(header, length, "\"topic\":\"");
    int queue = (int)number(header, length, "\"queueId\":\"");
    long long offset = number(header, length, "\"queueOffset\":\""), most = number(header, length, "\"maxMsgNums\":\"");
    if (most > MOST_PULLED)
        most = MOST_PULLED;
    if (topic && (queue < 0 || queue >= topic->queues))
        topic = NULL;
    if (topic && topic->counts[queue] > offset)
        give(c, topic, queue, opaque, offset, most);
    else if (topic && !(number(header, length, "\"sysFlag\":\"") & 2)) /* it does not wait */
        give_nothing(c, topic, queue, opaque, offset);
    else if (held_count < MOST_HELD)
        held[held_count++] = (struct held){c, topic, queue, opaque, offset, most};
}

static void store(struct connection *c, const char *header, size_t length, const char *body, size_t size, int code, long long opaque) {
    struct topic *topic = find_topic(header, length, code == 10 ? "\"topic\":\"" : "\"b\":\"");
    int queue = (int)number(header, length, code == 10 ? "\"queueId\":\"" : "\"e\":\""), messages = 1;
    if (!topic || queue < 0 || queue >= topic->queues) {
        answer(c, 17, opaque, "", "no such queue", 0);
        return;
    }
    if (code == 320) {
        messages = 0;
        for (size_t at = 0; at + 4 <= size && get32(body + at) >= 4; at += get32(body + at))
            messages++;
    }
    char ext[512 + 40 * 1024], *at = ext;
    at += sprintf(at, "\"queueId\":\"%d\",\"queueOffset\":\"%lld\",\"msgId\":\"", queue, topic->counts[queue]);
    for (int i = 0; i < messages && at < ext + sizeof ext - 64; i++)
        at += sprintf(at, "%s7F000001%08X%016llX", i ? "," : "", (unsigned)port,
                      (unsigned long long)((topic->counts[queue] + i) * topic->queues + queue) * topic->record_bytes);
    strcpy(at, "\"");
    char head[1024], *whole = at - ext > 512 ? malloc((size_t)(at - ext) + 512) : head;
    int head_bytes = sprintf(whole,
                             "{\"code\":0,\"extFields\":{%s},\"flag\":1,\"language\":\"JAVA\",\"opaque\":%lld,"
                             "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":477}",
                             ext, opaque);
    char *to = room(c, 8 + (size_t)head_bytes);
    memcpy(put32(put32(to, (uint32_t)(4 + head_bytes)), (uint32_t)head_bytes), whole, (size_t)head_bytes);
    c->out_length += 8 + (size_t)head_bytes;
    if (whole != head)
        free(whole);
    topic->counts[queue] += messages;
    turn_sends++;
}

static void create(const char *header, size_t length) {
    long long queues = number(header, length, "\"readQueueNums\":\"");
    struct topic *topic = &topics[topic_count];
    if (topic_count == MOST_TOPICS || queues < 1 || queues > MOST_QUEUES || find_topic(header, length, "\"topic\":\""))
        return;
    text(header, length, "\"topic\":\"", topic->name, sizeof topic->name);
    topic->queues = (int)queues;
    make_record(topic);
    topic_count++;
}

/* Of a topic that nobody made, such as one for what comes back, there is one queue. */
static void route(struct connection *c, const char *header, size_t length, long long opaque) {
    char body[512];
    const struct topic *topic = find_topic(header, length, "\"topic\":\"");
    int n = topic ? topic->queues : 1;
    snprintf(body, sizeof body,
             "{\"brokerDatas\":[{\"brokerAddrs\":{\"0\":\"127.0.0.1:%d\"},\"brokerName\":\"nothing\",\"cluster\":\"nothing\"}],"
             "\"filterServerTable\":{},\"queueDatas\":[{\"brokerName\":\"nothing\",\"perm\":6,\"readQueueNums\":%d,\"topicSysFlag\":0,"
             "\"writeQueueNums\":%d}]}",
             port, n, n);
    answer_text(c, opaque, body);
}

static void heartbeat(const char *body, size_t size) {
    const char *at = memmem(body, size, "\"consumerDataSet\":[{", 20);
    if (at)
        text(body, size, "\"clientID\":\"", client_id, sizeof client_id);
}

static void handle(struct connection *c, const char *frame, size_t size) {
    size_t length = get32(frame) & 0xffffff;
    const char *header = frame + 4, *body = header + length;
    size_t body_size = size - 4 - length;
    long long opaque = number(header, length, "\"opaque\":");
    int code = (int)number(header, length, "\"code\":");
    int one_way = (int)number(header, length, "\"flag\":") & 2;
    char words[256];
    const struct topic *topic;
    if (code == 34)
        heartbeat(body, body_size);
    if (one_way)
        return;
    switch (code) {
    case 10:
    case 310:
    case 320:
        store(c, header, length, body, body_size, code, opaque);
        break;
    case 11:
        pull(c, header, length, opaque);
        break;
    case 105:
        route(c, header, length, opaque);
        break;
    case 38:
        snprintf(words, sizeof words, "{\"consumerIdList\":[\"%s\"]}", client_id);
        answer_text(c, opaque, words);
        break;
    case 14: /* a group's offset: none, and the queue's beginning is there */
        answer(c, 22, opaque, "", "nothing is known", 0);
        break;
    case 30:
        topic = find_topic(header, length, "\"topic\":\"");
        snprintf(words, sizeof words, "\"offset\":\"%lld\"",
                 topic ? topic->counts[number(header, length, "\"queueId\":\"") % MOST_QUEUES] : 0);
        answer(c, 0, opaque, words, "", 0);
        break;
    case 17:
        create(header, length);
        answer(c, 0, opaque, "", "", 0);
        break;
    default:
        answer(c, 0, opaque, "", "", 0);
    }
}

static void make_file(const char *path) {
    char *zeros = calloc(1, READ_BYTES);
    file = open(path, O_RDWR | O_CREAT, 0600);
    for (off_t at = 0; at < FILE_BYTES; at += READ_BYTES)
        if (pwrite(file, zeros, READ_BYTES, at) != READ_BYTES)
            fail("write zeros");
    free(zeros);
    if (fsync(file))
        fail("fsync");
}

static void keep(const char *bytes, size_t size) {
    if (file_at + (off_t)size > FILE_BYTES)
        file_at = 0;
    if (pwrite(file, bytes, size, file_at) != (ssize_t)size)
        fail("write");
    file_at += (off_t)size;
}

static void take(struct connection *c) {
    ssize_t got = read(c->socket, c->in + c->in_length, READ_BYTES - c->in_length);
    if (got <= 0) {
        if (got < 0 && errno == EAGAIN)
            return;
        close(c->socket);
        c->socket = -1;
        return;
    }
    if (file >= 0)
        keep(c->in + c->in_length, (size_t)got);
    c->in_length += (size_t)got;
    size_t at = 0;
    while (c->in_length - at >= 4 && c->in_length - at >= 4 + (size_t)get32(c->in + at)) {
        handle(c, c->in + at + 4, get32(c->in + at));
        at += 4 + get32(c->in + at);
    }
    memmove(c->in, c->in + at, c->in_length - at);
    c->in_length -= at;
    if (file < 0)
        send_out(c);
    else
        unanswered[unanswered_count++] = c;
}

/* Have synced what is kept of a turn, and send what waits for that. */
static void answer_turn(void) {
    if (file >= 0 && turn_sends && fdatasync(file))
        fail("fdatasync");
    for (int i = 0; i < unanswered_count; i++)
        send_out(unanswered[i]);
    unanswered_count = 0;
}

static void watch(int descriptor, void *what) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, descriptor, &event))
        fail("epoll_ctl");
}

static void set_timer(int timer, uint64_t at_ns) {
    struct itimerspec when = {.it_value = {(time_t)(at_ns / 1000000000), (long)(at_ns % 1000000000)}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

int main(int count, char **words) {
    if (count < 3)
        return 2;
    port = atoi(words[1]);
    body_bytes = atoi(words[2]);
    sends_gather_ns = count > 3 ? (uint64_t)atoll(words[3]) * 1000 : 0;
    pulls_gather_ns = count > 4 ? (uint64_t)atoll(words[4]) * 1000 : 0;
    if (count > 5)
        make_file(words[5]);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 64))
        fail("listen");
    poller = epoll_create1(0);
    watch(listener, &listener);
    watch(timer, &timer);
    for (;;) {
        struct epoll_event events[MOST_EVENTS];
        int ready = epoll_wait(poller, events, MOST_EVENTS, -1);
        turn_sends = 0;
        if (sends_gather_ns && last_sends >= LEAST_GATHERED) {
            uint64_t now = now_ns(), then = sends_at_ns + sends_gather_ns;
            if (then > now) {
                struct timespec rest = {0, (long)(then - now)};
                nanosleep(&rest, NULL);
            }
        }
        for (int i = 0; i < ready; i++) {
            void *what = events[i].data.ptr;
            if (what == &timer) {
                uint64_t times;
                if (read(timer, &times, sizeof times) < 0 && errno != EAGAIN)
                    fail("timer");
            } else if (what == &listener) {
                struct connection *c = calloc(1, sizeof *c);
                c->socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                c->in = malloc(READ_BYTES);
                setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                watch(c->socket, c);
            } else
                take(what);
        }
        answer_turn();
        if (turn_sends) {
            sends_at_ns = now_ns();
            last_sends = turn_sends;
        }
        if (held_count) {
            uint64_t now = pulls_gather_ns ? now_ns() : 0;
            if (now >= pulls_at_ns + pulls_gather_ns || !pulls_gather_ns) {
                int before = held_count;
                give_held();
                if (held_count < before)
                    pulls_at_ns = now;
            } else
                set_timer(timer, pulls_at_ns + pulls_gather_ns);
        }
    }
}
