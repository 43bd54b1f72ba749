"""What a client in another language sees of a running node.

Usage: check.py HOST:PORT, with the generated code on PYTHONPATH. It uses the
generated messages and stubs, a stock channel (4 MiB messages) and nothing else;
each step is also an example. It prints every step and stops at the first that
fails, with exit code 1.
"""

import sys
import threading
import time
import traceback

import grpc
from google.rpc import error_details_pb2, status_pb2
from nova.v1 import append_pb2, append_pb2_grpc, bucket_pb2, bucket_pb2_grpc
from nova.v1 import read_pb2, read_pb2_grpc, record_pb2, stream_pb2, stream_pb2_grpc

BUCKET = "python"
PAGE = 3 << 20  # every answer stays below
WAIT = 30  # seconds that a call may take


class Clients:
    """The stubs over one channel."""

    def __init__(self, address):
        channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(channel).result(timeout=WAIT)
        self.buckets = bucket_pb2_grpc.BucketServiceStub(channel)
        self.streams = stream_pb2_grpc.StreamServiceStub(channel)
        self.appends = append_pb2_grpc.AppendServiceStub(channel)
        self.reads = read_pb2_grpc.ReadServiceStub(channel)

    def create(self, stream, **settings):
        request = stream_pb2.CreateStreamRequest(
            bucket=BUCKET, stream=stream, config=stream_pb2.StreamConfig(**settings)
        )
        return self.streams.CreateStream(request, timeout=WAIT).stream

    def append(self, stream, *bodies, **fields):
        request = append_pb2.AppendRequest(bucket=BUCKET, stream=stream, records=records(*bodies), **fields)
        return self.appends.Append(request, timeout=WAIT).ack

    def read(self, stream, **fields):
        return self.reads.Read(read_pb2.ReadRequest(bucket=BUCKET, stream=stream, **fields), timeout=WAIT)

    def tail(self, stream):
        return self.reads.CheckTail(read_pb2.CheckTailRequest(bucket=BUCKET, stream=stream), timeout=WAIT)

    def session(self, messages):
        return self.appends.AppendSession(iter(messages), timeout=WAIT)


def records(*bodies):
    return [record_pb2.AppendRecord(body=body) for body in bodies]


def opening(stream, **fields):
    return append_pb2.AppendSessionRequest(
        open=append_pb2.AppendSessionOpen(bucket=BUCKET, stream=stream, **fields)
    )


def batch(*bodies, **fields):
    return append_pb2.AppendSessionRequest(
        batch=append_pb2.AppendSessionBatch(records=records(*bodies), **fields)
    )


def details(error):
    """The google.rpc details of a grpc.RpcError: a list of messages."""
    found = []
    for key, value in error.trailing_metadata():
        if key != "grpc-status-details-bin":
            continue
        for any_message in status_pb2.Status.FromString(value).details:
            for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
                if any_message.Is(kind.DESCRIPTOR):
                    message = kind()
                    any_message.Unpack(message)
                    found.append(message)
    return found


def error_info(error):
    for detail in details(error):
        if isinstance(detail, error_details_pb2.ErrorInfo):
            return detail
    raise AssertionError("no ErrorInfo in %r" % error)


def equal(got, want):
    assert got == want, "got %r, want %r" % (got, want)


def refused(call, code, reason, **metadata):
    """call fails with the code, the reason, and at least this metadata."""
    try:
        answer = call()
    except grpc.RpcError as error:
        equal(error.code(), code)
        info = error_info(error)
        equal((info.domain, info.reason), ("nova", reason))
        for key, value in metadata.items():
            equal(info.metadata[key], value)
        return
    raise AssertionError("not refused with %s: %r" % (reason, answer))


def refused_field(call, path):
    """call fails because of the field at the path."""
    try:
        answer = call()
    except grpc.RpcError as error:
        equal(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        fields = [v.field for d in details(error) if isinstance(d, error_details_pb2.BadRequest) for v in d.field_violations]
        equal(fields, [path])
        return
    raise AssertionError("not refused for %s: %r" % (path, answer))


def buckets_and_streams(c):
    create = bucket_pb2.CreateBucketRequest(bucket=BUCKET, request_token="once")
    bucket = c.buckets.CreateBucket(create, timeout=WAIT).bucket
    equal(bucket.state, bucket_pb2.BUCKET_STATE_ACTIVE)
    equal(c.buckets.CreateBucket(create, timeout=WAIT).bucket, bucket)

    stream = c.create("made/here", retention_age_ms=86400000)
    equal(c.create("made/here", retention_age_ms=86400000), stream)
    refused(lambda: c.create("made/here", retention_age_ms=1000), grpc.StatusCode.ALREADY_EXISTS, "STREAM_EXISTS")
    got = c.streams.GetStream(stream_pb2.GetStreamRequest(bucket=BUCKET, stream="made/here"), timeout=WAIT)
    equal(got.stream, stream)
    # An explicit zero is not the same as nothing: it keeps records for ever.
    update = stream_pb2.UpdateStreamRequest(
        bucket=BUCKET, stream="made/here", config=stream_pb2.StreamConfig(retention_age_ms=0)
    )
    equal(c.streams.UpdateStream(update, timeout=WAIT).stream.config.retention_age_ms, 0)

    c.create("made/there")
    seen, after = [], ""
    while True:
        page = c.streams.ListStreams(
            stream_pb2.ListStreamsRequest(bucket=BUCKET, prefix="made/", start_after=after, limit=1), timeout=WAIT
        )
        seen += [s.name for s in page.streams]
        if not page.has_more:
            break
        after = page.streams[-1].name
    equal(seen, ["made/here", "made/there"])


def append_and_read(c):
    c.create("plain")
    first = c.append("plain", b"a", b"b", match_seq=0)
    equal((first.first_seq, first.next_seq, first.tail), (0, 2, 2))
    second = c.append("plain", b"c", match_seq=2)
    equal((second.first_seq, second.next_seq), (2, 3))
    page = c.read("plain")
    equal([(r.seq, r.body) for r in page.records], [(0, b"a"), (1, b"b"), (2, b"c")])
    equal((page.next_seq, page.tail, page.hash_after), (3, 3, second.content_hash))
    equal(c.tail("plain").content_hash, second.content_hash)
    equal([r.body for r in c.read("plain", tail_offset=1).records], [b"c"])
    equal(len(c.read("plain", seq=0, count=0).records), 0)
    equal(len(c.read("plain", seq=3).records), 0)


def binary_records(c):
    c.create("binary")
    every = bytes(range(256))
    sent = record_pb2.AppendRecord(
        timestamp=1, body=every * 16, headers=[record_pb2.Header(name=b"\xff\x00", value=every)] * 2
    )
    request = append_pb2.AppendRequest(bucket=BUCKET, stream="binary", records=[sent] + records(b""))
    ack = c.appends.Append(request, timeout=WAIT).ack
    equal(ack.first_timestamp, 1)
    got, empty = c.read("binary").records
    equal((got.timestamp, got.body, list(got.headers)), (1, sent.body, list(sent.headers)))
    equal((empty.body, len(empty.headers)), (b"", 0))
    assert abs(empty.timestamp / 1000 - time.time()) < 3600, empty.timestamp


def pipelined_session(c):
    c.create("session")
    count = 50
    batches = [batch(b"%d.0" % i, b"%d.1" % i, batch_seq=i) for i in range(count)]
    # The whole session is sent without waiting for an answer.
    answers = list(c.session([opening("session", producer_id="p", producer_epoch=1)] + batches))
    assert answers[0].HasField("opened"), answers[0]
    acks = answers[1:]
    equal([a.batch_index for a in acks], list(range(count)))
    equal([(a.ack.first_seq, a.ack.next_seq, a.ack.duplicate) for a in acks], [(2 * i, 2 * i + 2, False) for i in range(count)])

    # Any of the last 16 may be resent, here in another session and twice: the
    # first numbers again, nothing stored.
    again = list(c.session([opening("session", producer_id="p", producer_epoch=1), batches[40], batches[40]]))[1:]
    equal([(a.ack.first_seq, a.ack.next_seq, a.ack.duplicate) for a in again], [(80, 82, True)] * 2)
    equal([a.ack.content_hash for a in again], [acks[40].ack.content_hash] * 2)
    one = c.append("session", b"40.0", b"40.1", producer_id="p", producer_epoch=1, batch_seq=40)
    equal((one.first_seq, one.duplicate), (80, True))
    equal(c.tail("session").tail, 2 * count)
    equal([r.body for r in c.read("session").records], [b"%d.%d" % (i, j) for i in range(count) for j in range(2)])

    refused(
        lambda: c.append("session", b"gap", producer_id="p", producer_epoch=1, batch_seq=count + 1),
        grpc.StatusCode.FAILED_PRECONDITION, "PRODUCER_GAP", expected_batch_seq=str(count), outcome="NOT_COMMITTED",
    )
    c.append("session", b"next life", producer_id="p", producer_epoch=2, batch_seq=0)
    refused(
        lambda: c.append("session", b"old life", producer_id="p", producer_epoch=1, batch_seq=count),
        grpc.StatusCode.FAILED_PRECONDITION, "PRODUCER_FENCED", expected_epoch="2", outcome="UNKNOWN",
    )


def failing_session(c):
    c.create("failing")
    call = c.session([opening("failing"), batch(b"a"), batch(b"b", match_seq=9), batch(b"c")])
    answers = []

    def drain():
        for answer in call:
            answers.append(answer)

    refused(drain, grpc.StatusCode.FAILED_PRECONDITION, "SEQ_MISMATCH", tail="1")
    # The last batch has a failure of its own only if it was there before the
    # call ended; the call's status speaks for it too.
    equal([a.WhichOneof("message") for a in answers], ["opened", "ack", "failure", "failure"][: len(answers)])
    equal(answers[2].failure.reason, "SEQ_MISMATCH")
    for answer in answers[2:]:
        equal(answer.failure.outcome, append_pb2.OUTCOME_NOT_COMMITTED)
    equal([r.body for r in c.read("failing").records], [b"a"])


def paging(c):
    c.create("large")
    body, batches = b"\xa5" * ((1 << 20) - 1024), 4
    for i in range(batches):
        c.append("large", body, body, body, producer_id="p", batch_seq=i)
    seq, before = 0, 0
    while True:
        page = c.read("large", seq=seq)
        assert page.ByteSize() < PAGE, page.ByteSize()
        if not page.records:
            break
        equal([r.seq for r in page.records], list(range(seq, page.next_seq)))
        equal(page.hash_before, before)
        assert all(r.body == body for r in page.records)
        seq, before = page.next_seq, page.hash_after
    end = c.tail("large")
    equal((seq, before), (3 * batches, end.content_hash))
    equal(end.tail, seq)
    equal(len(c.read("large", seq=1, count=1).records), 1)
    equal(len(c.read("large", seq=1, bytes=2 * len(body)).records), 2)

    # The same by a subscription that ends at its limit.
    request = read_pb2.SubscribeRequest(bucket=BUCKET, stream="large", seq=0, count=3 * batches)
    seq = 0
    for message in c.reads.Subscribe(request, timeout=WAIT):
        assert message.ByteSize() < PAGE, message.ByteSize()
        equal([r.seq for r in message.records], list(range(seq, message.next_seq)))
        seq = message.next_seq
    equal(seq, 3 * batches)


def subscription(c):
    c.create("followed")
    c.append("followed", *(b"%d" % i for i in range(100)))
    request = read_pb2.SubscribeRequest(bucket=BUCKET, stream="followed", seq=0, heartbeat_ms=100)
    call = c.reads.Subscribe(request, timeout=WAIT)
    got, heartbeats, writer = [], 0, None

    def live():
        c.append("followed", b"100")
        c.append("followed", b"101", seal=True)

    for message in call:
        got += [r.body for r in message.records]
        equal(message.next_seq, len(got))
        if not message.records:
            heartbeats += 1
        # The past is here and two silences too: now the present.
        if heartbeats == 2 and writer is None:
            equal(len(got), 100)
            writer = threading.Thread(target=live)
            writer.start()
    # A sealed stream ends its subscriptions with OK.
    writer.join()
    equal(call.code(), grpc.StatusCode.OK)
    equal(got, [b"%d" % i for i in range(102)])

    open_end = c.reads.Subscribe(read_pb2.SubscribeRequest(bucket=BUCKET, stream="plain"), timeout=WAIT)
    next(open_end)
    open_end.cancel()
    equal(open_end.code(), grpc.StatusCode.CANCELLED)


def typed_errors(c):
    code = grpc.StatusCode
    c.create("errors")
    c.append("errors", b"a", b"b")
    mismatch = dict(tail="2", outcome="NOT_COMMITTED")
    refused(lambda: c.append("errors", b"x", match_seq=0), code.FAILED_PRECONDITION, "SEQ_MISMATCH", **mismatch)
    refused(lambda: c.append("errors", b"x", match_seq=7), code.FAILED_PRECONDITION, "SEQ_MISMATCH", **mismatch)
    refused(lambda: c.append("absent", b"x"), code.NOT_FOUND, "STREAM_NOT_FOUND", outcome="NOT_COMMITTED")
    refused(lambda: c.read("absent"), code.NOT_FOUND, "STREAM_NOT_FOUND")
    refused(
        lambda: c.buckets.GetBucket(bucket_pb2.GetBucketRequest(bucket="absent"), timeout=WAIT),
        code.NOT_FOUND, "BUCKET_NOT_FOUND",
    )
    refused(
        lambda: list(c.reads.Subscribe(read_pb2.SubscribeRequest(bucket=BUCKET, stream="absent"), timeout=WAIT)),
        code.NOT_FOUND, "STREAM_NOT_FOUND",
    )
    refused(lambda: c.read("errors", seq=3), code.OUT_OF_RANGE, "BEYOND_TAIL", tail="2")
    equal(c.read("errors", seq=3, clamp=True).next_seq, 2)
    c.appends.Trim(append_pb2.TrimRequest(bucket=BUCKET, stream="errors", seq=1), timeout=WAIT)
    refused(lambda: c.read("errors", seq=0), code.OUT_OF_RANGE, "TRIMMED", first_seq="1")

    fence = append_pb2.SetFencingTokenRequest(bucket=BUCKET, stream="errors", token="mine")
    c.appends.SetFencingToken(fence, timeout=WAIT)
    refused(lambda: c.append("errors", b"x", fencing_token=""), code.ABORTED, "FENCED", outcome="NOT_COMMITTED")
    c.append("errors", b"c", fencing_token="mine")
    c.appends.SealStream(append_pb2.SealStreamRequest(bucket=BUCKET, stream="errors"), timeout=WAIT)
    refused(lambda: c.append("errors", b"x"), code.FAILED_PRECONDITION, "STREAM_SEALED", tail="3", outcome="NOT_COMMITTED")

    unnamed = append_pb2.AppendRequest(
        bucket=BUCKET, stream="plain",
        records=[record_pb2.AppendRecord(), record_pb2.AppendRecord(headers=[record_pb2.Header(value=b"v")])],
    )
    refused_field(lambda: c.appends.Append(unnamed, timeout=WAIT), "records[1].headers[0].name")
    refused_field(lambda: c.append("plain"), "records")
    refused_field(lambda: c.append("plain", b"x", batch_seq=1), "batch_seq")
    refused_field(lambda: c.append("plain", b"\0" * ((1 << 20) + 1)), "records[0]")
    refused_field(lambda: c.create(".."), "stream")


def deleted_and_made_again(c):
    old = c.create("again")
    c.append("again", b"old")
    c.streams.DeleteStream(stream_pb2.DeleteStreamRequest(bucket=BUCKET, stream="again"), timeout=WAIT)
    new = c.create("again")
    assert new.stream_id != old.stream_id
    for call in (c.read, lambda s, **f: c.append(s, b"x", **f)):
        refused(lambda: call("again", stream_id=old.stream_id), grpc.StatusCode.NOT_FOUND, "STREAM_NOT_FOUND")
    equal(c.append("again", b"new", match_seq=0, stream_id=new.stream_id).first_seq, 0)


STEPS = (
    buckets_and_streams, append_and_read, binary_records, pipelined_session, failing_session,
    paging, subscription, typed_errors, deleted_and_made_again,
)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: check.py HOST:PORT")
    clients = Clients(sys.argv[1])
    for step in STEPS:
        name = "python: " + step.__name__.replace("_", " ")
        try:
            step(clients)
        except Exception:  # whatever it is: say in which step
            traceback.print_exc()
            sys.exit("FAILED " + name)
        print("ok", name, flush=True)


if __name__ == "__main__":
    main()
