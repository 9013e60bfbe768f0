"""The shortest program: one message there and back, with the official RocketMQ client."""

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

cluster = ClientConfiguration("127.0.0.1:8081", Credentials())

producer = Producer(cluster, ("demo",))
producer.startup()
message = Message()
message.topic = "demo"
message.body = b"hello"
print("sent", producer.send(message).message_id)
producer.shutdown()

consumer = SimpleConsumer(cluster, "hello", {"demo": FilterExpression()}, await_duration=5)
consumer.startup()
received = []
while not received:
    received = consumer.receive(1, 15)  # at most one message, invisible to others for 15 seconds
print("received", received[0].body.decode())
consumer.ack(received[0])
consumer.shutdown()
