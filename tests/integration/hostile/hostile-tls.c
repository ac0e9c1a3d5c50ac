/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: waits hostile */
/* hostile-tls.c: attacks on a TLS handshake and on what follows it
 *
 * Recorded bytes are replayed, changed or cut off; very many handshakes stay unfinished; a reader
 * stops reading; the network fails. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "lib/fixture.h"
#include "lib/proxy.h"
#include "lib/raw.h"

#define LENGTH (24 * MIB)
#define RECORDED 4096 /* longer than a handshake with a key */

static const char *const settings[] = { SHARED_KEY, "tls=1", "timeout=3000", NULL };
static const struct child_options owner = { .config = { SHARED_KEY, "tls=1", "timeout=3000" } };

static void open_fixture(struct fixture *f, uint64_t length)
{
	fixture_open_with(f, &route_tcp4, length, settings, &owner);
}

/* ---- a tapped connection ----------------------------------------------- */

/* Forwards connections one after another. Keeps the bytes of the first, and may change one byte in
 * transit. */
struct tap {
	pthread_t thread;
	int listener, stop[2];
	uint16_t port; /* the owner's */
	char url[48];
	int changed; /* whose byte is changed: 0: the client's; 1: the owner's; -1: nobody's */
	size_t at; /* its offset */
	uint8_t recorded[2][RECORDED]; /* bytes of the client, of the owner */
	size_t length[2];
};

static int connect_to(uint16_t port)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	want_true(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof(to)), "no connection");
	return fd;
}

static bool tap_forward(struct tap *tap, int from, int to, int whose, size_t *passed)
{
	uint8_t bytes[16384];
	ssize_t got = recv(from, bytes, sizeof(bytes), 0);
	size_t keep;

	if (got <= 0)
		return false;
	keep = RECORDED - tap->length[whose] < (size_t)got ? RECORDED - tap->length[whose] :
							     (size_t)got;
	memcpy(tap->recorded[whose] + tap->length[whose], bytes, keep);
	tap->length[whose] += keep;
	if (whose == tap->changed && tap->at >= *passed && tap->at < *passed + (size_t)got)
		bytes[tap->at - *passed] ^= 0x20;
	*passed += (size_t)got;
	return !send_all(to, bytes, (size_t)got);
}

static void *pass_on(void *argument)
{
	struct tap *tap = argument;
	struct pollfd look[3] = { { .events = POLLIN },
				  { .events = POLLIN },
				  { .fd = tap->stop[0], .events = POLLIN } };
	int client = -1, server = -1;
	size_t passed[2] = { 0, 0 };

	for (;;) {
		look[0].fd = client < 0 ? tap->listener : client;
		look[1].fd = server;
		if (poll(look, 3, -1) < 0 || look[2].revents)
			break;
		if (client < 0) {
			client = accept4(tap->listener, NULL, NULL, SOCK_CLOEXEC);
			server = connect_to(tap->port);
			passed[0] = passed[1] = 0;
			continue;
		}
		if ((!look[0].revents || tap_forward(tap, client, server, 0, &passed[0])) &&
		    (!look[1].revents || tap_forward(tap, server, client, 1, &passed[1])))
			continue;
		close(client);
		close(server);
		client = server = -1;
	}
	if (client >= 0)
		close(client);
	if (server >= 0)
		close(server);
	return NULL;
}

static void tap_open(struct tap *tap, const char *url)
{
	struct sockaddr_in here = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(here);

	memset(tap, 0, sizeof(*tap));
	tap->changed = -1;
	tap->port = (uint16_t)atoi(strrchr(url, ':') + 1);
	tap->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	want(0, bind(tap->listener, (struct sockaddr *)&here, sizeof(here)));
	want(0, listen(tap->listener, 16));
	want(0, getsockname(tap->listener, (struct sockaddr *)&here, &length));
	snprintf(tap->url, sizeof(tap->url), "wherry://127.0.0.1:%u", ntohs(here.sin_port));
	want(0, pipe(tap->stop));
	want(0, pthread_create(&tap->thread, NULL, pass_on, tap));
}

static void tap_close(struct tap *tap)
{
	want(1, write(tap->stop[1], "", 1));
	want(0, pthread_join(tap->thread, NULL));
	close(tap->stop[0]);
	close(tap->stop[1]);
	close(tap->listener);
}

/* Record a whole handshake and the opening of a peer, both sides' bytes. */
static void tap_record(struct tap *tap, struct fixture *f)
{
	struct wh_peer *peer;

	tap_open(tap, f->child->url);
	want(0, wh_peer_open(f->engine, tap->url, NULL, &peer));
	want(0, wh_peer_close(peer));
	tap_close(tap);
	want_true(tap->length[0] > 500 && tap->length[1] > 200, "it recorded %zu and %zu bytes",
		  tap->length[0], tap->length[1]);
}

/* ---- the handshake ----------------------------------------------------- */

/* All bytes of a member, replayed: the owner's random number has changed, so they are worthless.
 * The owner's own bytes, sent back, are worthless, too. */
static void handshake__replayed(void **state)
{
	struct fixture f;
	struct tap tap;

	(void)state;
	open_fixture(&f, MIB);
	tap_record(&tap, &f);
	for (int whose = 0; whose < 2; whose++) {
		uint8_t answer[RECORDED];
		ssize_t got, length = 0;
		int fd = connect_to(tap.port);

		send_all(fd, tap.recorded[whose], tap.length[whose]);
		while ((got = recv(fd, answer + length, sizeof(answer) - (size_t)length, 0)) > 0)
			length += got;
		/* At most its part of the handshake, with another random number; no WELCOME, no
		 * list. */
		want_true((size_t)length < tap.length[1],
			  "it says as much as to a member: %zd bytes", length);
		want_true(whose || length > 44, "it does not answer what a handshake begins with");
		want_true(length < 44 || memcmp(answer + 11, tap.recorded[1] + 11, 32) != 0,
			  "its random number recurs");
		close(fd);
	}
	round_trip(&f, 64, 64, 100000, 1);
	fixture_close(&f);
}

/* A byte is changed at various offsets, in either direction: this peer does not open; the next one
 * does. */
static void handshake__changed(void **state)
{
	struct wh_peer *peer;
	struct fixture f;
	struct tap tap;
	size_t length[2];

	(void)state;
	open_fixture(&f, MIB);
	tap_record(&tap, &f);
	memcpy(length, tap.length, sizeof(length));
	for (int whose = 0; whose < 2; whose++)
		/* Not the last bytes: changes after the proofs do not affect the opening. */
		for (size_t at = 5; at < 200; at += SCALE(13, 29)) {
			int error;

			tap_open(&tap, f.child->url);
			tap.changed = whose;
			tap.at = at;
			error = wh_peer_open(f.engine, tap.url, NULL, &peer);
			want_true(error < 0, "byte %zu of %d is changed, and nobody sees it", at,
				  whose);
			want_true(*wh_error_text() && !strchr(wh_error_text(), '\n'), "it says: %s",
				  wh_error_text());
			tap_close(&tap);
		}
	round_trip(&f, 64, 64, 100000, 2);
	fixture_close(&f);
}

/* Half of a member's bytes, then silence or the end. */
static void handshake__cut_off(void **state)
{
	enum { PLACES = 12 };
	int silent[PLACES], ended[PLACES];
	struct fixture f;
	struct tap tap;
	unsigned fds;

	(void)state;
	open_fixture(&f, MIB);
	tap_record(&tap, &f);
	round_trip(&f, 64, 64, 100000, 2);
	fds = child_fds(f.child);
	for (int i = 0; i < PLACES; i++) {
		size_t length = 1 + tap.length[0] * (size_t)i / PLACES;

		silent[i] = connect_to(tap.port);
		ended[i] = connect_to(tap.port);
		send_all(silent[i], tap.recorded[0], length);
		send_all(ended[i], tap.recorded[0], length);
		shutdown(ended[i], SHUT_WR);
	}
	round_trip(&f, 64, 64, 100000, 3);
	for (int i = 0; i < PLACES; i++) {
		want_true(raw_closes(ended[i], 60000), "who ends at %d is kept", i);
		want_true(raw_closes(silent[i], 60000), "who is silent at %d is kept", i);
		close(ended[i]);
		close(silent[i]);
	}
	for (int64_t end = now() + PATIENCE; child_fds(f.child) > fds && now() < end;)
		sleep_ms(10);
	want_true(child_fds(f.child) <= fds, "%u descriptors are left of %u", child_fds(f.child),
		  fds);
	round_trip(&f, 64, 64, 100000, 4);
	fixture_close(&f);
}

/* More clients than the limit, each in the middle of a handshake that has cost the owner work.
 * Members get in, and memory use stays low. */
static void handshake__crowd(void **state)
{
	enum { CROWD = 600 };
	int fds[CROWD];
	struct wh_peer *peer;
	struct fixture f;
	struct tap tap;
	uint64_t before, after;

	(void)state;
	open_fixture(&f, MIB);
	tap_record(&tap, &f);
	before = child_resident(f.child);
	for (int i = 0; i < CROWD; i++) {
		fds[i] = connect_to(tap.port);
		/* The first message, which is answered, and a part of the second. */
		send_all(fds[i], tap.recorded[0],
			 (size_t)(tap.recorded[0][3] << 8 | tap.recorded[0][4]) + 5 + 20);
		if (i % 100 == 99) {
			want(0, wh_peer_open(f.engine, f.child->url, NULL, &peer));
			want(0, wh_peer_close(peer));
		}
	}
	after = child_resident(f.child);
	/* At most 256, some 50 KiB each. */
	want_true(after < before + SCALE(32, 200) * MIB, "it has grown by %llu KiB",
		  (unsigned long long)(after - before) / KIB);
	want_true(child_fds(f.child) < 256 + 60, "it has %u descriptors", child_fds(f.child));
	round_trip(&f, 64, 64, 100000, 5);
	for (int i = 0; i < CROWD; i++)
		close(fds[i]);
	fixture_close(&f);
}

/* ---- after the handshake ----------------------------------------------- */

/* A client that requests much and reads nothing does not use up the owner's memory, and others are
 * served. When the network recovers, all works as before. */
static void reader__slow(void **state)
{
	static const char *const patient[] = { SHARED_KEY, "tls=1", NULL };
	static const struct child_options patient_owner = { .config = { SHARED_KEY, "tls=1" } };
	struct wh_transfer transfer;
	struct fixture f, direct;
	struct proxy *proxy;
	struct wh_batch *batch;
	uint64_t before, after;

	(void)state;
	fixture_open_with(&f, &route_tcp4, LENGTH, patient, &patient_owner);
	proxy = proxy_start(f.child->url);
	want_true(proxy, "no proxy");
	want(0, wh_peer_close(f.peer));
	fixture_connect(&f, proxy_url(proxy));
	round_trip(&f, 64, 64, 100000, 6);
	target_fill(&f, 0, LENGTH, 0, 7);
	direct = f;
	want(0, wh_peer_open(f.engine, f.child->url, NULL, &direct.peer));
	want(0, wh_peer_find(direct.peer, "target", PATIENCE, &direct.remote));
	before = child_resident(f.child);
	transfer = transfer_of(&f, WH_READ, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	proxy_freeze(proxy, true);
	want(0, wh_batch_submit(batch));
	want(-EAGAIN, batch_end(batch, SECOND));
	after = child_resident(f.child);
	want_true(after < before + SCALE(8, 100) * MIB, "it has grown by %llu KiB",
		  (unsigned long long)(after - before) / KIB);
	want(0, move(&direct, WH_READ, LENGTH, 0, 100000));
	want_true(pattern_check(f.local + LENGTH, 100000, 0, 7) == PATTERN_GOOD, "other bytes");
	want(0, wh_peer_close(direct.peer));
	/* Before the owner gives up: after twice the timeout. */
	proxy_freeze(proxy, false);
	want(0, batch_end(batch, 6 * PATIENCE));
	want_true(pattern_check(f.local, LENGTH, 0, 7) == PATTERN_GOOD, "other bytes");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	proxy_stop(proxy);
}

/* The network fails for longer than the timeout. Batches in flight fail; when the network is back,
 * the same peer reconnects by itself, with new keys. */
static void network__away(void **state)
{
	struct wh_peer_info info = { .size = sizeof(info) };
	struct wh_transfer transfer;
	struct proxy *proxy;
	struct wh_batch *batch;
	struct fixture f;
	int status;

	(void)state;
	open_fixture(&f, LENGTH);
	proxy = proxy_start(f.child->url);
	want_true(proxy, "no proxy");
	want(0, wh_peer_close(f.peer));
	fixture_connect(&f, proxy_url(proxy));
	round_trip(&f, 64, 64, 100000, 8);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	proxy_freeze(proxy, true);
	want(0, wh_batch_submit(batch));
	status = batch_end(batch, 6 * PATIENCE);
	want_true(status == -ECONNRESET || status == -ETIMEDOUT, "it ended with %d", status);
	proxy_freeze(proxy, false);
	pattern_fill(f.local, LENGTH, 0, 9);
	/* A busy machine may lose the connection once more. */
	for (int64_t end = now() + 6 * PATIENCE; status && now() < end; sleep_ms(20)) {
		want(0, wh_peer_info(f.peer, &info));
		if (info.state == WH_PEER_CONNECTED)
			status = wh_batch_submit(batch) ? -ECONNRESET :
							  batch_end(batch, 6 * PATIENCE);
		want_true(!status || status == -ECONNRESET || status == -ETIMEDOUT,
			  "it ended with %d", status);
	}
	want(0, status);
	want_true(target_check(&f, 0, LENGTH, 0, 9) == PATTERN_GOOD, "other bytes");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
	proxy_stop(proxy);
}

static const struct CMUnitTest tests[] = {
	TEST(handshake__replayed), TEST(handshake__changed), TEST(handshake__cut_off),
	TEST(handshake__crowd),    TEST(reader__slow),       TEST(network__away),
};
HARNESS_MAIN("hostile-tls", tests)
