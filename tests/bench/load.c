/* Raw send load for a remoting broker: C connections, each keeping W requests in flight, for S seconds.
 *
 *   load HOST PORT TOPIC QUEUES CONNECTIONS IN_FLIGHT SECONDS BODY_BYTES BATCH [REQUESTS [DUE_MS SPREAD_MS]]
 *   load HOST PORT @FRAMES CONNECTIONS IN_FLIGHT SECONDS
 *
 * BATCH 0 sends single messages (code 310), n > 0 batches of n (code 320), -n batches of n with bodies of different lengths around
 * BODY_BYTES. With REQUESTS it ends after so many, though the time is not up. With DUE_MS, a time in milliseconds since 1970, every
 * message is to be delivered then or within SPREAD_MS behind, spread evenly. FRAMES is a file of frames that are sent as they are, one
 * after the other and again from the first one, but for the request's number: for each its count of messages, 1 if it is one-way,
 * count of places and length, all as u32 of this machine; the places, each an offset and 0 for ten decimal digits or 1 for four
 * bytes; the frame. The one-way ones count as answered with the next that is answered. Prints one line of JSON:
 * requests acknowledged, messages, failures (answers with another code), seconds, and latency percentiles in microseconds.
 * Every answer is read and its code checked; after the time is up the requests in flight are awaited.
 *
 * Built with -DSECURE (and -lssl -lcrypto), it speaks TLS, to whatever certificate, when LOAD_TLS is set.
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
#include <time.h>
#include <unistd.h>
#ifdef SECURE
#include <openssl/ssl.h>
#endif

#define OPAQUE_BASE 1000000000LL
#define SLOTS (1 << 20)
#define READ_BYTES (1 << 18)
#define LATENCIES (1 << 22)
#define MIXED_BYTES 256 /* how much the bodies of a mixed batch differ in length */

struct frame {
    uint32_t messages, is_oneway, place_count, length;
    const uint32_t *places;
    const char *bytes;
};

struct connection {
    int socket;
#ifdef SECURE
    SSL *tls;
#endif
    int in_flight;
    char *out;
    size_t out_length, out_sent;
    char *in;
    size_t in_length;
};

static long long next_opaque = OPAQUE_BASE;
static uint64_t sent_at[SLOTS];
static uint32_t latencies[LATENCIES];
static size_t latency_count;
static long long acknowledged, failures;
static char *body;
static size_t body_length;
static const char *topic;
static int queues, batch, mixed;
static long long most = -1, due_ms, spread_ms = 1;
static struct frame *frames; /* the last of them is answered */
static size_t frame_count, frames_length;
static long long messages_of_all;
static uint32_t messages_of[SLOTS]; /* of what is in flight, by the request's number */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void put32(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static void make_body(size_t size) {
    if (batch == 0) {
        body = malloc(size);
        memset(body, 'x', size);
        body_length = size;
        return;
    }
    char properties[64];
    int properties_length = snprintf(properties, sizeof properties, "UNIQ_KEY\x01%032d\x02WAIT\x01true\x02", 7);
    size_t overhead = 22 + (size_t)properties_length;
    body = calloc((size_t)batch, overhead + size + MIXED_BYTES);
    char *at = body;
    for (int i = 0; i < batch; i++) {
        size_t length = mixed ? size - MIXED_BYTES / 2 + (size_t)i * 37 % MIXED_BYTES : size;
        put32(at, (uint32_t)(overhead + length));
        put32(at + 16, (uint32_t)length);
        memset(at + 20, 'x', length);
        uint16_t short_length = htons((uint16_t)properties_length);
        memcpy(at + 20 + length, &short_length, 2);
        memcpy(at + 22 + length, properties, (size_t)properties_length);
        at += overhead + length;
    }
    body_length = (size_t)(at - body);
}

static void read_frames(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    uint32_t head[4];
    while (fread(head, sizeof *head, 4, file) == 4) {
        uint32_t *places = malloc(head[2] * 2 * sizeof *places);
        char *bytes = malloc(head[3]);
        if (fread(places, 2 * sizeof *places, head[2], file) != head[2] || fread(bytes, 1, head[3], file) != head[3]) {
            fprintf(stderr, "%s ends amid a frame\n", path);
            exit(1);
        }
        frames = realloc(frames, (frame_count + 1) * sizeof *frames);
        frames[frame_count++] = (struct frame){head[0], head[1], head[2], head[3], places, bytes};
        frames_length += head[3];
    }
    fclose(file);
    if (!frame_count || frames[frame_count - 1].is_oneway) {
        fprintf(stderr, "%s does not end with a frame that is answered\n", path);
        exit(1);
    }
}

/* Write the frames up to the next that is answered. */
static void queue_frames(struct connection *c) {
    static size_t next;
    uint32_t messages = 0;
    for (;;) {
        const struct frame *frame = &frames[next++ % frame_count];
        long long opaque = next_opaque++;
        char *at = c->out + c->out_length, digits[24];
        memcpy(at, frame->bytes, frame->length);
        sprintf(digits, "%010lld", opaque);
        for (uint32_t i = 0; i < frame->place_count; i++) {
            if (frame->places[2 * i + 1])
                put32(at + frame->places[2 * i], (uint32_t)opaque);
            else
                memcpy(at + frame->places[2 * i], digits, 10);
        }
        c->out_length += frame->length;
        messages += frame->messages;
        if (frame->is_oneway) continue;
        messages_of[opaque % SLOTS] = messages;
        sent_at[opaque % SLOTS] = now_ns();
        c->in_flight++;
        return;
    }
}

static void queue_request(struct connection *c) {
    if (frame_count) {
        queue_frames(c);
        return;
    }
    long long opaque = next_opaque++;
    char *frame = c->out + c->out_length;
    char due[64] = "";
    if (due_ms)
        sprintf(due, "TIMER_DELIVER_MS\\u0001%lld\\u0002", due_ms + (opaque - OPAQUE_BASE) * spread_ms / most % spread_ms);
    int header = sprintf(frame + 8,
        "{\"code\":%d,\"extFields\":{\"a\":\"bench\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%d\",\"f\":\"0\","
        "\"g\":\"1700000000000\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u0001%032lld\\u0002WAIT\\u0001true\\u0002%s\",\"j\":\"0\","
        "\"k\":\"false\",\"m\":\"%s\",\"n\":\"broker-a\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%lld,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        batch ? 320 : 310, topic, (int)(opaque % queues), opaque, due, batch ? "true" : "false", opaque);
    put32(frame, (uint32_t)(4 + (size_t)header + body_length));
    put32(frame + 4, (uint32_t)header);
    memcpy(frame + 8 + header, body, body_length);
    c->out_length += 8 + (size_t)header + body_length;
    c->in_flight++;
    sent_at[opaque % SLOTS] = now_ns();
}

static ssize_t put(struct connection *c, const char *data, size_t length) {
#ifdef SECURE
    if (c->tls) {
        int n = SSL_write(c->tls, data, (int)length);
        if (n <= 0) errno = SSL_get_error(c->tls, n) == SSL_ERROR_WANT_WRITE ? EAGAIN : EPIPE;
        return n <= 0 ? -1 : n;
    }
#endif
    return send(c->socket, data, length, MSG_NOSIGNAL);
}

static ssize_t get(struct connection *c, char *data, size_t length) {
#ifdef SECURE
    if (c->tls) {
        int n = SSL_read(c->tls, data, (int)length);
        if (n <= 0) errno = SSL_get_error(c->tls, n) == SSL_ERROR_WANT_READ ? EAGAIN : EPIPE;
        return n <= 0 ? -1 : n;
    }
#endif
    return recv(c->socket, data, length, 0);
}

static void secure(struct connection *c) {
#ifdef SECURE
    static SSL_CTX *context;
    if (!getenv("LOAD_TLS")) return;
    if (!context) {
        context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
    c->tls = SSL_new(context);
    SSL_set_fd(c->tls, c->socket);
    if (SSL_connect(c->tls) != 1) {
        fprintf(stderr, "no TLS\n");
        exit(1);
    }
#else
    (void)c;
#endif
}

static int may_send(void) {
    return most < 0 || next_opaque - OPAQUE_BASE < most;
}

static void flush(struct connection *c) {
    while (c->out_sent < c->out_length) {
        ssize_t n = put(c, c->out + c->out_sent, c->out_length - c->out_sent);
        if (n < 0) {
            if (errno == EAGAIN) return;
            perror("send");
            exit(1);
        }
        c->out_sent += (size_t)n;
    }
    c->out_sent = c->out_length = 0;
}

static void take_answer(struct connection *c, const char *header, size_t length) {
    char *code = memmem(header, length, "\"code\":", 7);
    char *opaque = memmem(header, length, "\"opaque\":", 9);
    if (!code || !opaque) {
        fprintf(stderr, "an answer without code or opaque\n");
        exit(1);
    }
    long long number = atoll(opaque + 9);
    if (atoi(code + 7) == 0) {
        acknowledged++;
        messages_of_all += frame_count ? messages_of[number % SLOTS] : (uint32_t)(batch ? batch : 1);
    } else {
        if (!failures) fprintf(stderr, "refused: %.*s\n", (int)length, header);
        failures++;
    }
    uint64_t took = now_ns() - sent_at[number % SLOTS];
    latencies[latency_count++ % LATENCIES] = (uint32_t)(took / 1000);
    c->in_flight--;
}

static void receive(struct connection *c) {
    for (;;) {
        ssize_t n = get(c, c->in + c->in_length, READ_BYTES - c->in_length);
        if (n == 0) {
            fprintf(stderr, "the broker closed the connection\n");
            exit(1);
        }
        if (n < 0) {
            if (errno == EAGAIN) return;
            perror("recv");
            exit(1);
        }
        c->in_length += (size_t)n;
        size_t at = 0;
        while (c->in_length - at >= 8) {
            uint32_t total, header;
            memcpy(&total, c->in + at, 4);
            memcpy(&header, c->in + at + 4, 4);
            total = ntohl(total);
            header = ntohl(header) & 0xffffff;
            if (c->in_length - at < total + 4) break;
            take_answer(c, c->in + at + 8, header);
            at += total + 4;
        }
        memmove(c->in, c->in + at, c->in_length - at);
        c->in_length -= at;
    }
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int has_frames = argc == 7 && argv[3][0] == '@';
    if (!has_frames && (argc < 10 || argc > 13 || argc == 12)) {
        fprintf(stderr, "usage: load HOST PORT TOPIC QUEUES CONNECTIONS IN_FLIGHT SECONDS BODY_BYTES BATCH "
                        "[REQUESTS [DUE_MS SPREAD_MS]]\n"
                        "       load HOST PORT @FRAMES CONNECTIONS IN_FLIGHT SECONDS\n");
        return 2;
    }
    if (argc > 10) most = atoll(argv[10]);
    if (argc > 12) {
        due_ms = atoll(argv[11]);
        spread_ms = atoll(argv[12]);
    }
    topic = argv[3];
    char **common = argv + (has_frames ? 4 : 5);
    int count = atoi(common[0]), window = atoi(common[1]);
    double seconds = atof(common[2]);
    if (has_frames) {
        read_frames(argv[3] + 1);
    } else {
        queues = atoi(argv[4]);
        batch = abs(atoi(argv[9]));
        mixed = argv[9][0] == '-';
        make_body((size_t)atoi(argv[8]));
    }
    size_t request_length = has_frames ? frames_length : body_length + 1024;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    struct sockaddr_in6 address6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(argv[2]))};
    int is_v6 = strchr(argv[1], ':') != NULL;
    inet_pton(is_v6 ? AF_INET6 : AF_INET, argv[1], is_v6 ? (void *)&address6.sin6_addr : (void *)&address.sin_addr);
    struct connection *connections = calloc((size_t)count, sizeof *connections);
    int poll = epoll_create1(0);
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        c->socket = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
        if (connect(c->socket, is_v6 ? (struct sockaddr *)&address6 : (struct sockaddr *)&address,
                    is_v6 ? sizeof address6 : sizeof address) != 0) {
            perror("connect");
            return 1;
        }
        int one = 1;
        setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->out = malloc(request_length * (size_t)(window + 1));
        c->in = malloc(READ_BYTES);
        secure(c);
        fcntl(c->socket, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->socket, &event);
    }

    uint64_t start = now_ns(), stop = start + (uint64_t)(seconds * 1e9), last = start;
    long long open_requests = 0;
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < window && may_send(); j++, open_requests++) queue_request(&connections[i]);
        flush(&connections[i]);
    }
    struct epoll_event events[256];
    while (open_requests > 0) {
        int n = epoll_wait(poll, events, 256, 10000);
        if (n == 0) {
            fprintf(stderr, "no answer for 10 s\n");
            return 1;
        }
        last = now_ns();
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            int before = c->in_flight;
            receive(c);
            open_requests -= before - c->in_flight;
            if (c->out_length == 0)
                while (last < stop && c->in_flight < window && may_send()) {
                    queue_request(c);
                    open_requests++;
                }
            flush(c);
        }
    }
    double elapsed = (double)(last - start) / 1e9;
    size_t kept = latency_count < LATENCIES ? latency_count : LATENCIES;
    qsort(latencies, kept, sizeof *latencies, compare);
    printf("{\"requests\":%lld,\"messages\":%lld,\"failures\":%lld,\"seconds\":%.3f,\"messages_per_s\":%.0f,"
           "\"p50_us\":%u,\"p99_us\":%u,\"p9999_us\":%u,\"max_us\":%u}\n",
           acknowledged, messages_of_all, failures, elapsed, (double)messages_of_all / elapsed, latencies[kept / 2], latencies[kept * 99 / 100],
           latencies[kept * 9999 / 10000], latencies[kept - 1]);
    return 0;
}
