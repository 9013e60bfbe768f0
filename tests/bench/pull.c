/* Raw pull load for a remoting broker: C connections, each pulling one queue from its beginning to its end, over and over.
 *
 *   pull HOST PORT TOPIC QUEUES CONNECTIONS IN_FLIGHT SECONDS [PULLS_PER_SECOND | round TAG | along TAG]
 *
 * Each connection keeps IN_FLIGHT requests open (code 11, 32 messages at most, filter "*"), on IN_FLIGHT different places of its queue.
 * With a last number, no more are asked in a second, all connections together. With `along` and a tag, or several with `||`, messages
 * of these are asked for; who finds none where he looked goes on behind that. With `round` and a tag (or *), each connection goes
 * round its share of the queues instead, at least IN_FLIGHT of them, and begins a queue again where less than a whole answer is left.
 * Prints one line of JSON: requests answered with messages, messages, answers with another code, seconds, and latency percentiles
 * in microseconds. Every body is walked record by record: the count is that of whole records.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES (1 << 22)
#define MESSAGES 32
#define LATENCIES (1 << 22)
#define MOST_PLACES 64

struct place { /* where the next pull of one of the open requests begins */
    int queue;
    long long offset;
    uint64_t asked_at;
};

struct connection {
    int socket, queue;         /* `queue`: its first */
    int next_queue;            /* of its round */
    long long *offsets;        /* by queue, in a round */
    struct place places[MOST_PLACES];
    char *in;
    size_t in_length;
};

static uint32_t latencies[LATENCIES];
static size_t latency_count;
static long long answered, messages, others, open_requests;
static const char *topic, *tag = "*";
static int window, queues, count;
static int is_round, is_along;
static uint64_t pause_ns, next_ns; /* between two requests, and when the next one may be asked */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static uint32_t get32(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static void fail(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void keep_pace(void) {
    uint64_t now = now_ns();
    struct timespec t = {.tv_sec = (time_t)(next_ns / 1000000000ULL), .tv_nsec = (long)(next_ns % 1000000000ULL)};
    if (next_ns > now)
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
    else
        next_ns = now;
    next_ns += pause_ns;
}

/* Have the place go on in the next queue of the connection's round. */
static void begin_next(struct connection *c, struct place *place) {
    place->queue = c->next_queue;
    place->offset = c->offsets[place->queue];
    c->next_queue += count;
    if (c->next_queue >= queues) c->next_queue = c->queue;
}

static void ask(struct connection *c, int number) {
    char frame[1024];
    if (pause_ns) keep_pace();
    if (is_round) begin_next(c, &c->places[number]);
    int header = snprintf(frame + 8, sizeof frame - 8,
        "{\"code\":11,\"extFields\":{\"consumerGroup\":\"bench-pull\",\"topic\":\"%s\",\"queueId\":\"%d\",\"queueOffset\":\"%lld\","
        "\"maxMsgNums\":\"%d\",\"sysFlag\":\"4\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"0\",\"subscription\":\"%s\","
        "\"subVersion\":\"0\",\"expressionType\":\"TAG\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%d,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        topic, c->places[number].queue, c->places[number].offset, MESSAGES, tag, number);
    uint32_t total = htonl((uint32_t)(4 + header)), length = htonl((uint32_t)header);
    memcpy(frame, &total, 4);
    memcpy(frame + 4, &length, 4);
    c->places[number].asked_at = now_ns();
    for (size_t sent = 0; sent < (size_t)header + 8;) {
        ssize_t n = send(c->socket, frame + sent, (size_t)header + 8 - sent, MSG_NOSIGNAL);
        if (n < 0) fail("send failed");
        sent += (size_t)n;
    }
    open_requests++;
}

static long long field(const char *header, size_t length, const char *name) {
    char *at = memmem(header, length, name, strlen(name));
    if (!at) fail("an answer without a field that it must have");
    at += strlen(name);
    while (*at == '"' || *at == ':') at++;
    return atoll(at);
}

/* The answer's request may be asked again when `more`. */
static void take_answer(struct connection *c, const char *header, size_t length, const char *body, size_t body_length, int more) {
    int number = (int)field(header, length, "\"opaque\"");
    if (number < 0 || number >= window) fail("an answer to a request that was not asked");
    struct place *place = &c->places[number];
    if (field(header, length, "\"code\"") == 0) {
        long long count = 0;
        for (size_t at = 0; at < body_length; count++) {
            if (body_length - at < 4 || get32(body + at) < 91 || get32(body + at) > body_length - at) fail("a body that is not records");
            at += get32(body + at);
        }
        answered++;
        messages += count;
        place->offset = field(header, length, "\"nextBeginOffset\"");
    } else {
        others++;
        long long next = field(header, length, "\"nextBeginOffset\"");
        /* the end of the queue: begin again */
        place->offset = is_along && next > place->offset && next < field(header, length, "\"maxOffset\"") ? next : 0;
    }
    if (is_round) {
        int is_whole = field(header, length, "\"maxOffset\"") >= place->offset + MESSAGES;
        c->offsets[place->queue] = is_whole ? place->offset : 0;
    }
    latencies[latency_count++ % LATENCIES] = (uint32_t)((now_ns() - place->asked_at) / 1000);
    open_requests--;
    if (more) ask(c, number);
}

static void receive(struct connection *c, int more) {
    ssize_t n = recv(c->socket, c->in + c->in_length, READ_BYTES - c->in_length, MSG_DONTWAIT);
    if (n == 0) fail("the broker closed the connection");
    if (n < 0) {
        if (errno == EAGAIN) return;
        fail("recv failed");
    }
    c->in_length += (size_t)n;
    size_t at = 0;
    while (c->in_length - at >= 8) {
        size_t total = get32(c->in + at), header = get32(c->in + at + 4) & 0xffffff;
        if (total + 4 > READ_BYTES) fail("an answer that is too long");
        if (c->in_length - at < total + 4) break;
        take_answer(c, c->in + at + 8, header, c->in + at + 8 + header, total - 4 - header, more);
        at += total + 4;
    }
    memmove(c->in, c->in + at, c->in_length - at);
    c->in_length -= at;
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc == 10) is_round = strcmp(argv[8], "round") == 0, is_along = strcmp(argv[8], "along") == 0, tag = argv[9];
    if (argc < 8 || argc > 10 || (argc == 10 && !is_round && !is_along))
        fail("usage: pull HOST PORT TOPIC QUEUES CONNECTIONS IN_FLIGHT SECONDS [PULLS_PER_SECOND | round TAG | along TAG]");
    if (argc == 9) pause_ns = (uint64_t)(1e9 / atof(argv[8]));
    topic = argv[3];
    queues = atoi(argv[4]), count = atoi(argv[5]);
    window = atoi(argv[6]);
    if (window < 1 || window > MOST_PLACES) fail("too many requests in flight");
    if (is_round && queues / count < window) fail("too few queues to go round");
    double seconds = atof(argv[7]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    struct connection *connections = calloc((size_t)count, sizeof *connections);
    struct pollfd *polled = calloc((size_t)count, sizeof *polled);
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        c->socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c->socket, (struct sockaddr *)&address, sizeof address) != 0) fail("cannot connect");
        int one = 1;
        setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->queue = c->next_queue = i % queues;
        c->offsets = calloc((size_t)queues, sizeof *c->offsets);
        c->in = malloc(READ_BYTES);
        for (int j = 0; j < window; j++) c->places[j] = (struct place){.queue = c->queue, .offset = (long long)j * 1000};
        polled[i] = (struct pollfd){.fd = c->socket, .events = POLLIN};
    }
    uint64_t start = now_ns(), stop = start + (uint64_t)(seconds * 1e9), last = start;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < window; j++) ask(&connections[i], j);
    while (open_requests > 0) {
        if (poll(polled, (nfds_t)count, 10000) == 0) fail("no answer for 10 s");
        last = now_ns();
        for (int i = 0; i < count; i++)
            if (polled[i].revents) receive(&connections[i], last < stop);
    }
    double elapsed = (double)(last - start) / 1e9;
    size_t kept = latency_count < LATENCIES ? latency_count : LATENCIES;
    qsort(latencies, kept, sizeof *latencies, compare);
    printf("{\"requests\":%lld,\"messages\":%lld,\"others\":%lld,\"seconds\":%.3f,\"messages_per_s\":%.0f,\"p50_us\":%u,\"p99_us\":%u}\n",
           answered, messages, others, elapsed, (double)messages / elapsed, latencies[kept / 2], latencies[kept * 99 / 100]);
    return 0;
}
