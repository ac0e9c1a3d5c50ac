/* SPDX-License-Identifier: Apache-2.0 */
/* The raw limit over sockets: plain TCP or TLS, both ends. It measures what a program reaches that
 * just sends and receives. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bench/bench.h"

/* ---- memory ------------------------------------------------------------------------------- */

#define HUGE_PAGE (UINT64_C(2) << 20)

static void *map_huge(uint64_t length)
{
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	char *start;
	uint64_t skip;

	if (memory != MAP_FAILED)
		return memory;
	/* No huge pages are reserved: use transparent ones, which need an aligned start. */
	start = mmap(NULL, length + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		     -1, 0);
	if (start == MAP_FAILED)
		return NULL;
	skip = -(uintptr_t)start % HUGE_PAGE;
	if (skip)
		munmap(start, skip);
	munmap(start + skip + length, HUGE_PAGE - skip);
	madvise(start + skip, length, MADV_HUGEPAGE);
	return start + skip;
}

static uint64_t mapped_length(uint64_t length)
{
	return (length + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

void *bench_map(uint32_t kind, uint64_t length)
{
	uint64_t whole = mapped_length(length);
	void *memory;
	int fd;

	if (kind == WH_MEMORY_HUGE) {
		memory = map_huge(whole);
	} else if (kind == WH_MEMORY_PAGEABLE) {
		memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			      0);
	} else {
		fd = memfd_create("bench", MFD_CLOEXEC);
		if (fd < 0)
			return NULL;
		memory = ftruncate(fd, (off_t)whole) ?
				 MAP_FAILED :
				 mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
	}
	if (!memory || memory == MAP_FAILED)
		return NULL;
	memset(memory, 0xa5, length);
	return memory;
}

void bench_unmap(void *memory, uint64_t length)
{
	if (memory)
		munmap(memory, mapped_length(length));
}

/* ---- bytes over a socket ------------------------------------------------------------------ */

#define VECTORS 1024 /* blocks in a call, IOV_MAX */

/* Memory walked through again and again: from start to end, or block by block. */
struct area {
	char *memory;
	uint64_t length, at;
	/* of the blocks in the order of the walk; NULL: no blocks */
	const uint64_t *offsets;
	uint64_t size; /* of a block */
};

/* The next bytes: at most `most`, in at most `room` vectors. */
static int area_vectors(const struct area *area, uint64_t most, struct iovec *vector,
			uint64_t vectors)
{
	uint64_t left = area->length - area->at < most ? area->length - area->at : most;
	uint64_t block, within, n = 0;

	if (!area->offsets) {
		*vector = (struct iovec){ area->memory + area->at, left };
		return 1;
	}
	block = area->at / area->size;
	within = area->at % area->size;
	*vector = (struct iovec){ NULL, 0 };
	for (; left && n < vectors; n++, block++, within = 0) {
		uint64_t bytes = area->size - within < left ? area->size - within : left;

		vector[n] = (struct iovec){ area->memory + area->offsets[block] + within, bytes };
		left -= bytes;
	}
	return (int)n;
}

static void area_advance(struct area *area, uint64_t bytes)
{
	area->at += bytes;
	if (area->at == area->length)
		area->at = 0;
}

static int socket_retry(bool spin)
{
	return errno == EINTR || (spin && errno == EAGAIN);
}

/* Send with one call. */
static ssize_t send_some(struct bench_pipe *pipe, const struct area *area, uint64_t most, bool spin)
{
	int flags = MSG_NOSIGNAL | (spin ? MSG_DONTWAIT : 0);
	struct iovec vector[VECTORS];
	struct msghdr message = { .msg_iov = vector };

	message.msg_iovlen = (size_t)area_vectors(area, most, vector, pipe->ssl ? 1 : VECTORS);
	if (pipe->ssl)
		return bench_tls_send(pipe, vector->iov_base, vector->iov_len, spin);
	return message.msg_iovlen == 1 ? send(pipe->fd, vector->iov_base, vector->iov_len, flags) :
					 sendmsg(pipe->fd, &message, flags);
}

static ssize_t recv_some(struct bench_pipe *pipe, const struct area *area, uint64_t most, bool spin)
{
	int flags = spin ? MSG_DONTWAIT : 0;
	struct iovec vector[VECTORS];
	struct msghdr message = { .msg_iov = vector };

	message.msg_iovlen = (size_t)area_vectors(area, most, vector, pipe->ssl ? 1 : VECTORS);
	if (pipe->ssl)
		return bench_tls_recv(pipe, vector->iov_base, vector->iov_len, spin);
	return message.msg_iovlen == 1 ? recv(pipe->fd, vector->iov_base, vector->iov_len, flags) :
					 recvmsg(pipe->fd, &message, flags);
}

static int send_area(struct bench_pipe *pipe, struct area *area, uint64_t bytes, uint64_t chunk,
		     bool spin)
{
	uint64_t part = 0;
	ssize_t n;

	while (bytes) {
		/* A short send continues with the rest of its part. */
		if (!part)
			part = bytes < chunk ? bytes : chunk;
		n = send_some(pipe, area, part, spin);
		if (n < 0 && socket_retry(spin))
			continue;
		if (n < 0)
			return -errno;
		part -= (uint64_t)n;
		bytes -= (uint64_t)n;
		area_advance(area, (uint64_t)n);
	}
	return 0;
}

/* The connections' walks cross: one connection may overwrite what another receives, and nobody
 * reads those bytes. Tell the thread sanitizer to ignore that. */
static void walks_cross(bool begin)
{
#ifdef __SANITIZE_THREAD__
	void AnnotateIgnoreWritesBegin(const char *file, int line);
	void AnnotateIgnoreWritesEnd(const char *file, int line);

	(begin ? AnnotateIgnoreWritesBegin : AnnotateIgnoreWritesEnd)(__FILE__, __LINE__);
#else
	(void)begin;
#endif
}

static int recv_walk(struct bench_pipe *pipe, struct area *area, uint64_t bytes, uint64_t chunk,
		     bool spin)
{
	ssize_t n;

	while (bytes) {
		n = recv_some(pipe, area, bytes < chunk ? bytes : chunk, spin);
		if (n < 0 && socket_retry(spin))
			continue;
		if (n <= 0)
			return n ? -errno : -ECONNRESET;
		bytes -= (uint64_t)n;
		area_advance(area, (uint64_t)n);
	}
	return 0;
}

static int recv_area(struct bench_pipe *pipe, struct area *area, uint64_t bytes, uint64_t chunk,
		     bool spin)
{
	int error;

	walks_cross(true);
	error = recv_walk(pipe, area, bytes, chunk, spin);
	walks_cross(false);
	return error;
}

/* Send a few bytes that are not part of an area. */
static int send_bytes(struct bench_pipe *pipe, void *bytes, uint64_t length, bool spin)
{
	struct area area = { .memory = bytes, .length = length };

	return send_area(pipe, &area, length, length, spin);
}

static int recv_bytes(struct bench_pipe *pipe, void *bytes, uint64_t length, bool spin)
{
	struct area area = { .memory = bytes, .length = length };

	return recv_walk(pipe, &area, length, length, spin);
}

/* Set the options that Wherry sets: on loopback no congestion control that paces, and no buffers of
 * megabytes. */
static int set_socket(int fd, uint64_t buffer)
{
	int one = 1, size = buffer > INT32_MAX ? INT32_MAX : buffer ? (int)buffer : 512 << 10;
	char control[16] = "";
	socklen_t length = sizeof(control) - 1;

	if (!getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &length) &&
	    !strncmp(control, "bbr", 3) &&
	    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno")))
		return -errno;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)))
		return -errno;
	return 0;
}

/* ---- the raw process ---------------------------------------------------------------------- */

/* The head of each message that the command sends to a connection's thread, on that connection. */
enum { HEAD_PUSH, HEAD_PULL, HEAD_PING_WRITE, HEAD_PING_READ };

struct head {
	uint32_t what, spin;
	uint64_t bytes, count, chunk;
	uint64_t length, at; /* how much of the memory to walk through, and from which offset */
};

struct raw {
	pthread_mutex_t lock; /* guards all members below */
	char *memory;
	uint64_t length;
	struct bench_walk walk; /* of the row's blocks; empty: no blocks */
	const uint64_t *offsets; /* of the side that is in this process */
	uint64_t size;
	int listener;
};

struct served {
	struct raw *raw;
	struct bench_pipe pipe;
	uint32_t cipher;
};

static int serve_ping(struct bench_pipe *pipe, const struct head *head, struct area *area)
{
	char byte = 1;
	int error = 0;

	for (uint64_t i = 0; !error && i < head->count; i++) {
		/* A ping's bytes are contiguous. */
		if (area->at + head->bytes > area->length)
			area->at = 0;
		if (head->what == HEAD_PING_WRITE) {
			error = recv_area(pipe, area, head->bytes, head->chunk, head->spin);
			if (!error)
				error = send_bytes(pipe, &byte, 1, head->spin);
		} else {
			error = recv_bytes(pipe, &byte, 1, head->spin);
			if (!error)
				error = send_area(pipe, area, head->bytes, head->chunk, head->spin);
		}
	}
	return error;
}

static void *serve_connection(void *arg)
{
	struct served served = *(struct served *)arg;
	struct head head;
	char byte = 1;
	int error = bench_tls_start(&served.pipe, served.cipher, true);

	free(arg);
	while (!error && !recv_bytes(&served.pipe, &head, sizeof(head), false)) {
		struct area area = { .length = head.length, .at = head.at };

		pthread_mutex_lock(&served.raw->lock);
		area.memory = served.raw->memory;
		area.offsets = served.raw->offsets;
		area.size = served.raw->size;
		pthread_mutex_unlock(&served.raw->lock);
		if (head.what == HEAD_PUSH) {
			error = recv_area(&served.pipe, &area, head.bytes, head.chunk, false);
			if (!error)
				error = send_bytes(&served.pipe, &byte, 1, false);
		} else if (head.what == HEAD_PULL) {
			error = send_area(&served.pipe, &area, head.bytes, head.chunk, false);
		} else {
			error = serve_ping(&served.pipe, &head, &area);
		}
	}
	bench_tls_end(&served.pipe);
	close(served.pipe.fd);
	return NULL;
}

static int raw_memory(struct raw *raw, const struct bench_order *order, struct bench_answer *answer)
{
	int error = 0;

	/* All connections' threads wait for their next head: nobody uses the old memory. */
	pthread_mutex_lock(&raw->lock);
	bench_unmap(raw->memory, raw->length);
	raw->length = order->length;
	raw->memory = bench_map(order->kind, order->length);
	if (!raw->memory)
		error = -errno;
	answer->address = (uintptr_t)raw->memory;
	pthread_mutex_unlock(&raw->lock);
	return error;
}

/* Learn the order in which a row's blocks are walked. */
static int raw_walk(struct raw *raw, const struct bench_row *row)
{
	int error = 0;

	/* As for the memory, nobody uses the old walk. */
	pthread_mutex_lock(&raw->lock);
	bench_walk_free(&raw->walk);
	raw->offsets = NULL;
	raw->size = row->layout.size;
	if (row->form != BENCH_FORM_SINGLE) {
		error = bench_walk_new(&row->layout, &raw->walk);
		raw->offsets = row->op == WH_WRITE ? raw->walk.target : raw->walk.source;
	}
	pthread_mutex_unlock(&raw->lock);
	return error;
}

static int raw_listen(struct raw *raw, const struct bench_order *order, struct bench_answer *answer)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int error;

	raw->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (raw->listener < 0)
		return -errno;
	/* Accepted sockets inherit the options. */
	error = set_socket(raw->listener, order->length);
	if (error)
		return error;
	if (bind(raw->listener, (struct sockaddr *)&address, sizeof(address)) ||
	    listen(raw->listener, BENCH_CONNECTIONS) ||
	    getsockname(raw->listener, (struct sockaddr *)&address, &length))
		return -errno;
	answer->count = ntohs(address.sin_port);
	return 0;
}

static int raw_accept(struct raw *raw, const struct bench_order *order)
{
	struct served *served;
	pthread_t thread;
	int error;

	for (uint32_t i = 0; i < order->connections; i++) {
		served = calloc(1, sizeof(*served));
		if (!served)
			return -ENOMEM;
		served->raw = raw;
		served->cipher = order->kind;
		served->pipe.fd = accept4(raw->listener, NULL, NULL, SOCK_CLOEXEC);
		if (served->pipe.fd < 0) {
			error = -errno;
			free(served);
			return error;
		}
		error = pthread_create(&thread, NULL, serve_connection, served);
		if (error) {
			close(served->pipe.fd);
			free(served);
			return -error;
		}
		pthread_detach(thread);
	}
	return 0;
}

void bench_raw_serve(int fd, void *arg)
{
	static struct raw raw = { .lock = PTHREAD_MUTEX_INITIALIZER, .listener = -1 };
	struct bench_order order;
	struct bench_answer answer;

	(void)arg; /* `raw` is static because the threads outlive this function */
	while (bench_next_order(fd, &order)) {
		memset(&answer, 0, sizeof(answer));
		if (order.what == BENCH_RAW_MEMORY)
			answer.error = raw_memory(&raw, &order, &answer);
		else if (order.what == BENCH_RAW_WALK)
			answer.error = raw_walk(&raw, &order.row);
		else if (order.what == BENCH_RAW_LISTEN)
			answer.error = raw_listen(&raw, &order, &answer);
		else if (order.what == BENCH_RAW_ACCEPT)
			answer.error = raw_accept(&raw, &order);
		if (answer.error)
			snprintf(answer.text, sizeof(answer.text), "the raw process: %s",
				 strerror(-answer.error));
		bench_reply(fd, &answer);
		if (order.what == BENCH_QUIT)
			return;
	}
}

/* ---- the command's end -------------------------------------------------------------------- */

static int stream_fail(const char *what, char text[BENCH_TEXT])
{
	int error = -errno;

	snprintf(text, BENCH_TEXT, "%s for the raw limit: %s", what, strerror(-error));
	return error;
}

static int stream_listen(struct bench_stream *stream, char text[BENCH_TEXT])
{
	struct bench_order order = { .what = BENCH_RAW_LISTEN, .length = stream->buffer };
	struct bench_answer answer;
	int error = bench_ask(stream->process, &order, &answer);

	if (error) {
		memcpy(text, answer.text, BENCH_TEXT);
		return error;
	}
	stream->port = (int)answer.count;
	return 0;
}

int bench_stream_connect(struct bench_stream *stream, unsigned connections, char text[BENCH_TEXT])
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct bench_order order = { .what = BENCH_RAW_ACCEPT, .kind = stream->cipher };
	struct bench_answer answer;
	unsigned first = stream->count;
	int error, fd;

	if (!stream->port) {
		error = stream_listen(stream, text);
		if (error)
			return error;
	}
	address.sin_port = htons((uint16_t)stream->port);
	while (stream->count < connections) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			return stream_fail("a socket", text);
		error = set_socket(fd, stream->buffer);
		if (error || connect(fd, (struct sockaddr *)&address, sizeof(address))) {
			error = stream_fail("connecting", text);
			close(fd);
			return error;
		}
		stream->pipe[stream->count++] = (struct bench_pipe){ .fd = fd };
		order.connections++;
	}
	error = order.connections ? bench_ask(stream->process, &order, &answer) : 0;
	if (error)
		memcpy(text, answer.text, BENCH_TEXT);
	for (; !error && first < stream->count; first++) {
		error = bench_tls_start(&stream->pipe[first], stream->cipher, false);
		if (error)
			snprintf(text, BENCH_TEXT,
				 "OpenSSL fails with the handshake for the raw limit: %s",
				 strerror(-error));
	}
	return error;
}

void bench_stream_close(struct bench_stream *stream)
{
	for (unsigned i = 0; i < stream->count; i++) {
		bench_tls_end(&stream->pipe[i]);
		close(stream->pipe[i].fd);
	}
	stream->count = 0;
	stream->port = 0;
}

/* Holds the threads of a flow until all have been created, or one could not be. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum { GATE_SHUT, GATE_OPEN, GATE_GIVEN_UP } state;
};

static void gate_set(struct gate *gate, int state)
{
	pthread_mutex_lock(&gate->lock);
	gate->state = state;
	pthread_cond_broadcast(&gate->changed);
	pthread_mutex_unlock(&gate->lock);
}

static bool gate_pass(struct gate *gate)
{
	bool open;

	pthread_mutex_lock(&gate->lock);
	while (gate->state == GATE_SHUT)
		pthread_cond_wait(&gate->changed, &gate->lock);
	open = gate->state == GATE_OPEN;
	pthread_mutex_unlock(&gate->lock);
	return open;
}

/* One connection's share of a flow. */
struct share {
	const struct bench_flow *flow;
	struct gate *gate;
	pthread_t thread;
	struct bench_pipe *pipe;
	int error;
	uint64_t bytes, chunk;
	struct area area;
	struct head head;
	int64_t end;
};

static void *share_run(void *arg)
{
	struct share *share = arg;
	char byte;

	if (!gate_pass(share->gate))
		return NULL;
	share->error = send_bytes(share->pipe, &share->head, sizeof(share->head), false);
	if (!share->error && share->flow->push) {
		share->error =
			send_area(share->pipe, &share->area, share->bytes, share->chunk, false);
		if (!share->error)
			share->error = recv_bytes(share->pipe, &byte, 1, false);
	} else if (!share->error) {
		share->error =
			recv_area(share->pipe, &share->area, share->bytes, share->chunk, false);
	}
	share->end = bench_now();
	return NULL;
}

/* Every connection walks through all of the memory at either end, each from its own offset, as
 * Wherry's connections do: any of them may carry any batch. */
static void share_plan(struct share *share, const struct bench_flow *flow, unsigned i)
{
	share->flow = flow;
	share->bytes = flow->bytes / flow->connections;
	share->chunk = flow->chunk;
	share->area = (struct area){
		.memory = flow->memory,
		.length = flow->near_length,
		.at = flow->near_length / flow->connections * i,
		.offsets = flow->offsets,
		.size = flow->size,
	};
	share->head = (struct head){
		.what = flow->push ? HEAD_PUSH : HEAD_PULL,
		.bytes = share->bytes,
		.chunk = flow->chunk,
		.length = flow->far_length,
		.at = flow->far_length / flow->connections * i,
	};
}

int bench_stream_flow(struct bench_stream *stream, const struct bench_flow *flow, int64_t *ns)
{
	struct share shares[BENCH_CONNECTIONS] = { 0 };
	struct gate gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, GATE_SHUT };
	unsigned started = 1;
	int64_t start, end = 0;
	int error = 0;

	for (unsigned i = 0; i < flow->connections; i++) {
		share_plan(&shares[i], flow, i);
		shares[i].gate = &gate;
		shares[i].pipe = &stream->pipe[i];
	}
	/* This thread runs the first share: a single connection needs no other thread. */
	while (!error && started < flow->connections) {
		error = -pthread_create(&shares[started].thread, NULL, share_run, &shares[started]);
		started += !error;
	}
	start = bench_now();
	gate_set(&gate, error ? GATE_GIVEN_UP : GATE_OPEN);
	share_run(&shares[0]);
	for (unsigned i = 0; i < started; i++) {
		if (i)
			pthread_join(shares[i].thread, NULL);
		if (shares[i].end > end)
			end = shares[i].end;
		if (!error)
			error = shares[i].error;
	}
	*ns = end - start;
	return error;
}

int bench_stream_ping(struct bench_stream *stream, const struct bench_flow *flow, uint64_t count,
		      uint64_t *samples)
{
	struct area area = { .memory = flow->memory,
			     .length = flow->near_length,
			     .offsets = flow->offsets,
			     .size = flow->size };
	struct head head = {
		.what = flow->push ? HEAD_PING_WRITE : HEAD_PING_READ,
		.spin = flow->spin,
		.bytes = flow->bytes,
		.count = count,
		.chunk = flow->chunk,
		.length = flow->far_length,
	};
	struct bench_pipe *pipe = &stream->pipe[0];
	char byte = 1;
	int error;

	/* Both ends continue where the last slice ended. */
	area.at = stream->at % (flow->near_length / flow->bytes) * flow->bytes;
	head.at = stream->at % (flow->far_length / flow->bytes) * flow->bytes;
	stream->at += count;
	error = send_bytes(pipe, &head, sizeof(head), flow->spin);
	for (uint64_t i = 0; !error && i < count; i++) {
		int64_t start;

		if (area.at + flow->bytes > area.length)
			area.at = 0;
		start = bench_now();
		if (flow->push) {
			error = send_area(pipe, &area, flow->bytes, flow->chunk, flow->spin);
			if (!error)
				error = recv_bytes(pipe, &byte, 1, flow->spin);
		} else {
			error = send_bytes(pipe, &byte, 1, flow->spin);
			if (!error)
				error = recv_area(pipe, &area, flow->bytes, flow->chunk,
						  flow->spin);
		}
		samples[i] = (uint64_t)(bench_now() - start);
	}
	return error;
}
