/* SPDX-License-Identifier: Apache-2.0 */
/* proxy.c: a TCP proxy between two engines, in a thread of the test */
#include "proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

#define PAIRS_MAX 64
#define BUFFER (256u << 10)
#define TICK_MS 5
/* Kept of a stranded connection: the sender never has more in flight. */
#define STRANDED_MAX ((size_t)64 << 20)

/* Bytes in flight from fd[side] to fd[!side]. */
struct direction {
	size_t start, end; /* of the unsent part of `bytes` */
	bool ended; /* the source has sent its last byte */
	uint64_t allowed; /* bytes that may pass now under a rate limit */
	unsigned char *bytes;
};

/* A client's connection and the one to the server that belongs to it. */
struct pair {
	int fd[2]; /* 0: client, 1: server; -1: free slot */
	unsigned int role; /* from the HELLO; 0: not seen yet */
	uint64_t seen; /* bytes received from the client */
	struct direction direction[2];
};

struct proxy {
	pthread_t thread;
	pthread_mutex_t lock; /* protects all members from `stop` on */
	int listener;
	struct sockaddr_in target;
	char url[64];
	bool stop, frozen;
	struct proxy_damage damage; /* role 0: none is due */
	bool damaged;
	uint64_t rate, bytes; /* bytes per s (0: no limit); bytes forwarded so far */
	unsigned int accepted;
	struct pair pairs[PAIRS_MAX];
	struct {
		int fd; /* to the server */
		unsigned char *bytes; /* that it has not got; NULL: no connection is stranded */
		size_t length;
	} stranded;
};

static void pair_close(struct pair *pair, bool reset)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 0 };

	for (int side = 0; side < 2; side++) {
		if (reset)
			setsockopt(pair->fd[side], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		close(pair->fd[side]);
		free(pair->direction[side].bytes);
	}
	memset(pair, 0, sizeof(*pair));
	pair->fd[0] = pair->fd[1] = -1;
}

/* Reset the client's half, and drop the pair without a word to the server. */
static void pair_reset_client(struct pair *pair)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(pair->fd[0], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	pair_close(pair, false);
}

static void proxy_accept(struct proxy *proxy)
{
	int client = accept4(proxy->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
	int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct pair *pair = NULL;

	for (int i = 0; i < PAIRS_MAX && !pair; i++)
		if (proxy->pairs[i].fd[0] < 0)
			pair = &proxy->pairs[i];
	/* Blocks only briefly: the server is on this host. */
	if (!pair || client < 0 || server < 0 ||
	    connect(server, (struct sockaddr *)&proxy->target, sizeof(proxy->target)) != 0) {
		if (client >= 0)
			close(client);
		if (server >= 0)
			close(server);
		return;
	}
	setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	pair->fd[0] = client;
	pair->fd[1] = server;
	for (int side = 0; side < 2; side++)
		pair->direction[side].bytes = malloc(BUFFER + PROXY_DAMAGE_MAX);
	proxy->accepted++;
}

/* Find the role in the client's HELLO, at byte 16: after the frame header (8), magic and
 * versions. */
static void pair_find_role(struct pair *pair, const unsigned char *bytes, size_t n)
{
	if (pair->seen <= 16 && pair->seen + n > 16)
		pair->role = bytes[16 - pair->seen];
	pair->seen += n;
}

/* Damage the bytes that have just been received from one side, if it is their turn. */
static void pair_damage(struct proxy *proxy, struct pair *pair, int side)
{
	struct direction *way = &pair->direction[side];
	struct proxy_damage *damage = &proxy->damage;
	size_t length = damage->length;
	unsigned char *at;

	if (!damage->role || damage->role != pair->role || damage->side != side)
		return;
	if (damage->after >= way->end) {
		damage->after -= way->end;
		return;
	}
	at = way->bytes + damage->after;
	if (length > way->end - damage->after)
		length = way->end - damage->after;
	if (damage->harm == PROXY_FLIP)
		*at ^= (unsigned char)(1U << damage->bit);
	else if (damage->harm == PROXY_REPEAT)
		memmove(at + length, at, way->end - damage->after);
	else
		memmove(at, at + length, way->end - damage->after - length);
	if (damage->harm == PROXY_REPEAT)
		way->end += length;
	else if (damage->harm == PROXY_DROP)
		way->end -= length;
	damage->role = 0;
	proxy->damaged = true;
}

/* Move bytes in one direction. False: the pair is broken. */
static bool pair_forward(struct proxy *proxy, struct pair *pair, int side)
{
	struct direction *way = &pair->direction[side];
	ssize_t n;

	if (way->start == way->end && !way->ended) {
		size_t room = BUFFER;

		if (proxy->rate && way->allowed < room)
			room = way->allowed;
		n = room ? recv(pair->fd[side], way->bytes, room, MSG_DONTWAIT) : -1;
		if (n == 0) {
			way->ended = true;
			shutdown(pair->fd[!side], SHUT_WR);
		} else if (n < 0) {
			return !room || errno == EAGAIN;
		}
		way->start = 0;
		way->end = (size_t)n;
		if (proxy->rate)
			way->allowed -= (uint64_t)n;
		if (side == 0)
			pair_find_role(pair, way->bytes, way->end);
		pair_damage(proxy, pair, side);
	}
	if (way->start < way->end) {
		n = send(pair->fd[!side], way->bytes + way->start, way->end - way->start,
			 MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0)
			return errno == EAGAIN;
		way->start += (size_t)n;
		proxy->bytes += (uint64_t)n;
	}
	return true;
}

/* The poll events of one side of a pair. */
static short events_of(const struct proxy *proxy, const struct pair *pair, int side)
{
	const struct direction *in = &pair->direction[side], *out = &pair->direction[!side];
	short events = 0;

	if (in->start == in->end && !in->ended && (!proxy->rate || in->allowed))
		events |= POLLIN;
	if (out->start < out->end)
		events |= POLLOUT;
	return events;
}

static void proxy_refill(struct proxy *proxy, int64_t ms)
{
	for (int i = 0; i < PAIRS_MAX; i++)
		for (int side = 0; side < 2; side++) {
			uint64_t *allowed = &proxy->pairs[i].direction[side].allowed;

			*allowed += proxy->rate * (uint64_t)ms / 1000;
			if (*allowed > proxy->rate / 10 + 1)
				*allowed = proxy->rate / 10 + 1;
		}
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* One round of polling. The caller holds the lock; it is released while the thread sleeps. */
static void proxy_poll(struct proxy *proxy)
{
	struct pollfd polled[1 + 2 * PAIRS_MAX];
	nfds_t n = 0;

	polled[n++] = (struct pollfd){ .fd = proxy->listener, .events = POLLIN };
	for (int i = 0; i < PAIRS_MAX && !proxy->frozen; i++)
		for (int side = 0; side < 2; side++) {
			struct pair *pair = &proxy->pairs[i];
			short events = pair->fd[0] < 0 ? 0 : events_of(proxy, pair, side);

			if (events)
				polled[n++] =
					(struct pollfd){ .fd = pair->fd[side], .events = events };
		}
	pthread_mutex_unlock(&proxy->lock);
	poll(polled, n, TICK_MS);
	pthread_mutex_lock(&proxy->lock);
	if (polled[0].revents & POLLIN)
		proxy_accept(proxy);
	for (int i = 0; i < PAIRS_MAX && !proxy->frozen; i++) {
		struct pair *pair = &proxy->pairs[i];

		if (pair->fd[0] < 0)
			continue;
		if (!pair_forward(proxy, pair, 0) || !pair_forward(proxy, pair, 1))
			pair_close(pair, true);
		else if (pair->direction[0].ended && pair->direction[1].ended)
			pair_close(pair, false);
	}
}

static void *proxy_run(void *arg)
{
	struct proxy *proxy = arg;
	int64_t last = now_ms();

	pthread_mutex_lock(&proxy->lock);
	while (!proxy->stop) {
		int64_t moment = now_ms();

		if (proxy->rate)
			proxy_refill(proxy, moment - last);
		last = moment;
		proxy_poll(proxy);
	}
	pthread_mutex_unlock(&proxy->lock);
	return NULL;
}

struct proxy *proxy_start(const char *url)
{
	struct proxy *proxy = calloc(1, sizeof(*proxy));
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	const char *port = strrchr(url, ':');

	if (!proxy || !port)
		goto err_free;
	proxy->target = address;
	proxy->target.sin_port = htons((uint16_t)atoi(port + 1));
	for (int i = 0; i < PAIRS_MAX; i++)
		proxy->pairs[i].fd[0] = proxy->pairs[i].fd[1] = -1;
	proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (proxy->listener < 0)
		goto err_free;
	if (bind(proxy->listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    listen(proxy->listener, 64) != 0 ||
	    getsockname(proxy->listener, (struct sockaddr *)&address, &length) != 0)
		goto err_close;
	snprintf(proxy->url, sizeof(proxy->url), "wherry://127.0.0.1:%d", ntohs(address.sin_port));
	pthread_mutex_init(&proxy->lock, NULL);
	if (pthread_create(&proxy->thread, NULL, proxy_run, proxy) != 0)
		goto err_close;
	return proxy;

err_close:
	close(proxy->listener);
err_free:
	free(proxy);
	return NULL;
}

void proxy_stop(struct proxy *proxy)
{
	pthread_mutex_lock(&proxy->lock);
	proxy->stop = true;
	pthread_mutex_unlock(&proxy->lock);
	pthread_join(proxy->thread, NULL);
	for (int i = 0; i < PAIRS_MAX; i++)
		if (proxy->pairs[i].fd[0] >= 0)
			pair_close(&proxy->pairs[i], true);
	close(proxy->listener);
	pthread_mutex_destroy(&proxy->lock);
	free(proxy);
}

const char *proxy_url(const struct proxy *proxy)
{
	return proxy->url;
}

unsigned int proxy_connections(struct proxy *proxy, unsigned int role)
{
	unsigned int count = 0;

	pthread_mutex_lock(&proxy->lock);
	for (int i = 0; i < PAIRS_MAX; i++)
		count += proxy->pairs[i].fd[0] >= 0 && (!role || proxy->pairs[i].role == role);
	pthread_mutex_unlock(&proxy->lock);
	return count;
}

unsigned int proxy_accepted(struct proxy *proxy)
{
	unsigned int count;

	pthread_mutex_lock(&proxy->lock);
	count = proxy->accepted;
	pthread_mutex_unlock(&proxy->lock);
	return count;
}

uint64_t proxy_bytes(struct proxy *proxy)
{
	uint64_t bytes;

	pthread_mutex_lock(&proxy->lock);
	bytes = proxy->bytes;
	pthread_mutex_unlock(&proxy->lock);
	return bytes;
}

bool proxy_await_bytes(struct proxy *proxy, uint64_t total)
{
	int64_t end = now() + PATIENCE;

	while (proxy_bytes(proxy) < total && now() < end)
		sleep_ms(1);
	return proxy_bytes(proxy) >= total;
}

void proxy_freeze(struct proxy *proxy, bool frozen)
{
	pthread_mutex_lock(&proxy->lock);
	proxy->frozen = frozen;
	pthread_mutex_unlock(&proxy->lock);
}

void proxy_slow(struct proxy *proxy, uint64_t bytes_per_second)
{
	pthread_mutex_lock(&proxy->lock);
	proxy->rate = bytes_per_second;
	pthread_mutex_unlock(&proxy->lock);
}

unsigned int proxy_cut(struct proxy *proxy, unsigned int role)
{
	unsigned int count = 0;

	pthread_mutex_lock(&proxy->lock);
	for (int i = 0; i < PAIRS_MAX; i++) {
		struct pair *pair = &proxy->pairs[i];

		if (pair->fd[0] >= 0 && (!role || pair->role == role)) {
			pair_close(pair, true);
			count++;
		}
	}
	pthread_mutex_unlock(&proxy->lock);
	return count;
}

void proxy_damage(struct proxy *proxy, const struct proxy_damage *damage)
{
	pthread_mutex_lock(&proxy->lock);
	proxy->damage = damage ? *damage : (struct proxy_damage){ .role = 0 };
	proxy->damaged = false;
	pthread_mutex_unlock(&proxy->lock);
}

bool proxy_damaged(struct proxy *proxy)
{
	bool damaged;

	pthread_mutex_lock(&proxy->lock);
	damaged = proxy->damaged;
	pthread_mutex_unlock(&proxy->lock);
	return damaged;
}

/* The bytes of a pair that its server has not got: in the proxy, and in the client's socket. */
static size_t pair_take(struct pair *pair, unsigned char *bytes, size_t room)
{
	struct direction *way = &pair->direction[0];
	size_t length = way->end - way->start;
	ssize_t n;

	memcpy(bytes, way->bytes + way->start, length);
	while (length < room &&
	       (n = recv(pair->fd[0], bytes + length, room - length, MSG_DONTWAIT)) > 0)
		length += (size_t)n;
	return length;
}

size_t proxy_strand(struct proxy *proxy, unsigned int role)
{
	unsigned char *bytes = malloc(STRANDED_MAX);
	struct pair *pair = NULL;
	size_t length = 0;

	pthread_mutex_lock(&proxy->lock);
	for (int i = 0; i < PAIRS_MAX && !length && bytes && !proxy->stranded.bytes; i++) {
		pair = &proxy->pairs[i];
		if (pair->fd[0] >= 0 && pair->role == role)
			length = pair_take(pair, bytes, STRANDED_MAX);
	}
	if (length) {
		proxy->stranded.fd = fcntl(pair->fd[1], F_DUPFD_CLOEXEC, 0);
		proxy->stranded.bytes = bytes;
		proxy->stranded.length = length;
		/* The server's half lives on in the duplicate: it must not be reset. */
		pair_reset_client(pair);
	} else {
		free(bytes);
	}
	pthread_mutex_unlock(&proxy->lock);
	return length;
}

bool proxy_deliver(struct proxy *proxy)
{
	struct pollfd polled = { .fd = proxy->stranded.fd, .events = POLLOUT };
	int error = 0;
	bool open = true;
	size_t at = 0;
	char trash[4096];
	ssize_t n;

	while (open && at < proxy->stranded.length && poll(&polled, 1, -1) == 1) {
		n = send(proxy->stranded.fd, proxy->stranded.bytes + at,
			 proxy->stranded.length - at, MSG_NOSIGNAL | MSG_DONTWAIT);
		open = n > 0 || errno == EAGAIN;
		at += n > 0 ? (size_t)n : 0;
	}
	shutdown(proxy->stranded.fd, SHUT_WR);
	while ((n = recv(proxy->stranded.fd, trash, sizeof(trash), 0)) > 0)
		;
	/* If the server had read all before it closed, the end of its bytes came before the reset.
	 */
	getsockopt(proxy->stranded.fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){ sizeof(error) });
	open = open && n == 0 && !error;
	close(proxy->stranded.fd);
	free(proxy->stranded.bytes);
	proxy->stranded.bytes = NULL;
	return open;
}
