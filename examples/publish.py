"""Publish a delayed message with pika, and consume it when it is due."""
import os

import pika

url = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2f")
channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
channel.confirm_delivery()

# To the delay exchange. The header says how long to wait: here 10 seconds.
channel.basic_publish(
    exchange="orders.delay",
    routing_key="order.4711.close",
    body=b"close it unless it was paid",
    properties=pika.BasicProperties(delivery_mode=2, headers={"x-delay": 10_000}),
    mandatory=True,
)

# From the work queue, as from any other queue.
for method, properties, body in channel.consume("orders.close"):
    print(method.routing_key, body.decode())
    channel.basic_ack(method.delivery_tag)
    break
