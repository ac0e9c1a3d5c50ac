/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: waits hostile */
/* hostile-handshake.c: what strangers may send to an engine's two listeners, before and after a
 * handshake */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "lib/victim.h"
#include "wire/bytes.h"

#define TIMEOUT 1000 /* ms; the victim's */
#define SOON 60000 /* ms; ends a test that hangs */

/* Connect to a listener of the victim: 0 is TCP, 1 the unix socket. */
static int connect_to(struct victim *v, int listener)
{
	int fd = listener ? raw_unix(v->welcome.socket) : raw_connect(v->f.child->url);

	want_true(fd >= 0, "listener %d takes no connection: %s", listener, strerror(errno));
	return fd;
}

/* Send the bytes; the connection must be closed in response. */
static void want_closed(struct victim *v, int listener, const void *bytes, size_t length)
{
	int fd = connect_to(v, listener);

	send_all(fd, bytes, length);
	want_true(raw_closes(fd, SOON), "listener %d, %zu bytes: still open", listener, length);
	close(fd);
}

static void garbage__any_length(void **state)
{
	static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
	static const char ssh[] = "SSH-2.0-OpenSSH_9.2\r\n";
	unsigned char bytes[5000];
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (int listener = 0; listener < 2; listener++)
		for (size_t i = 0; i < SCALE(60, 20); i++) {
			size_t length = 8 + i * i % (sizeof(bytes) - 8);

			pattern_fill(bytes, sizeof(bytes), 0, i);
			want_closed(&v, listener, bytes, length);
		}
	memset(bytes, 0, sizeof(bytes));
	want_closed(&v, 0, bytes, sizeof(bytes));
	want_closed(&v, 0, http, sizeof(http));
	want_closed(&v, 0, ssh, sizeof(ssh));
	victim_close(&v);
}

static void hello__cut_at_every_byte(void **state)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX];
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	size_t length = raw_hello_bytes(bytes, &hello);
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (int listener = 0; listener < 2; listener++)
		for (size_t cut = 0; cut < length; cut++) {
			int fd = connect_to(&v, listener);

			want(0, send_all(fd, bytes, cut));
			shutdown(fd, SHUT_WR);
			want_true(raw_closes(fd, SOON), "cut at byte %zu: still open", cut);
			close(fd);
		}
	victim_close(&v);
}

/* Change every byte of a valid HELLO: the result is a refusal, a close or a WELCOME, nothing
 * worse. */
static void hello__every_byte_changed(void **state)
{
	static const uint8_t changes[] = { 0x00, 0x01, 0x7f, 0x80, 0xff };
	uint8_t good[WH_FRAME_HEADER + WH_HELLO_MAX], bytes[sizeof(good)];
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	size_t length = raw_hello_bytes(good, &hello);
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (size_t i = 0; i < length; i++)
		for (size_t c = 0; c < SCALE(5, 2); c++) {
			int fd = connect_to(&v, 0);

			memcpy(bytes, good, length);
			bytes[i] = changes[c];
			send_all(fd, bytes, length);
			shutdown(fd, SHUT_WR);
			want_true(raw_closes(fd, SOON), "byte %zu is %#x: still open", i,
				  (unsigned int)changes[c]);
			close(fd);
		}
	victim_close(&v);
}

static void hello__one_byte_at_a_time(void **state)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX];
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	size_t length = raw_hello_bytes(bytes, &hello);
	struct wh_frame frame;
	struct victim v;
	int fd;

	(void)state;
	victim_open(&v, 5000);
	fd = connect_to(&v, 0);
	for (size_t i = 0; i < length; i++) {
		want(0, send_all(fd, bytes + i, 1));
		if (i % 8 == 0)
			sleep_ms(1);
	}
	want_true(raw_receive_frame(fd, &frame, bytes, sizeof(bytes)) > 0, "no answer");
	want(WH_FRAME_WELCOME, frame.type);
	close(fd);
	victim_close(&v);
}

static void lengths__huge(void **state)
{
	static const uint32_t lengths[] = { WH_HELLO_MAX + 1, WH_FRAME_MAX, WH_FRAME_MAX + 1,
					    0x7fffffff,       0x80000000,   0xfffffff8,
					    0xffffffff };
	uint8_t bytes[WH_FRAME_HEADER + 64] = { 0 };
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
		for (uint16_t type = 0; type <= WH_FRAME_TYPE_END; type++) {
			wh_put16(wh_put16(wh_put32(bytes, lengths[i]), type), 0);
			want_closed(&v, type % 2, bytes, sizeof(bytes));
		}
	victim_close(&v);
}

/* ---- refused HELLOs ---------------------------------------------------- */

static int try_hello(struct victim *v, int listener, const struct wh_hello *hello)
{
	struct wh_hello welcome;
	int fd = connect_to(v, listener), error = raw_greet(fd, hello, &welcome);

	close(fd);
	return error;
}

static void refused__versions(void **state)
{
	static const uint16_t versions[][2] = { { 0, WH_WIRE_VERSION - 1 },
						{ WH_WIRE_VERSION - 1, WH_WIRE_VERSION - 1 },
						{ WH_WIRE_VERSION + 1, 0xffff },
						{ 0xffff, 0xffff } };
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (size_t i = 0; i < 4; i++) {
		hello.version_min = versions[i][0];
		hello.version_max = versions[i][1];
		want(EPROTONOSUPPORT, try_hello(&v, 0, &hello));
	}
	/* A newer engine that still speaks the old version. */
	hello.version_min = WH_WIRE_VERSION;
	hello.version_max = WH_WIRE_VERSION + 5;
	want(0, try_hello(&v, 0, &hello));
	victim_close(&v);
}

static void refused__roles(void **state)
{
	static const uint16_t unknown[] = { 0, 4, 255, 256, 0xffff };
	struct wh_hello hello;
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (size_t i = 0; i < 5; i++)
		for (int listener = 0; listener < 2; listener++) {
			hello = raw_hello_of(unknown[i], &v.welcome);
			want_true(try_hello(&v, listener, &hello) != 0, "role %d taken",
				  unknown[i]);
		}
	hello = raw_hello_of(WH_ROLE_LOCAL, &v.welcome);
	want_true(try_hello(&v, 0, &hello) != 0, "shm over TCP");
	hello = raw_hello_of(WH_ROLE_DATA, &v.welcome);
	want_true(try_hello(&v, 1, &hello) != 0, "data over the unix socket");
	hello = raw_hello_of(WH_ROLE_CONTROL, &v.welcome);
	want_true(try_hello(&v, 1, &hello) != 0, "control over the unix socket");
	victim_close(&v);
}

/* Only the client that began a session may open connections of it. */
static void refused__sessions(void **state)
{
	static const uint16_t roles[] = { WH_ROLE_DATA, WH_ROLE_LOCAL };
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (int i = 0; i < 2; i++) {
		struct wh_hello good = raw_hello_of(roles[i], &v.welcome), hello = good;
		struct raw_shake shake;
		int fd;

		want(0, try_hello(&v, i, &good));
		hello.session++;
		want(EACCES, try_hello(&v, i, &hello));
		hello.session = 0;
		want(EACCES, try_hello(&v, i, &hello));
		/* The well-behaved peer's session is closed to others. */
		hello.session = good.session - 1;
		fd = connect_to(&v, i);
		want(0, raw_shake(fd, &hello, NULL, &shake));
		want_true(memcmp(shake.proofs.owner, shake.decoded.auth + WH_NONCE_SIZE,
				 WH_PROOF_SIZE) != 0,
			  "its key is guessed");
		want(0, raw_prove(fd, shake.proofs.initiator));
		want_true(raw_closes(fd, SOON), "another's session was entered");
		close(fd);
		hello = good;
		hello.expected++;
		want(ESTALE, try_hello(&v, i, &hello));
	}
	/* The key of a session ends with it. */
	{
		struct wh_hello hello = raw_hello_of(WH_ROLE_DATA, &v.welcome);

		close(v.control);
		v.control = -1;
		for (int64_t end = now() + PATIENCE; !try_hello(&v, 0, &hello) && now() < end;)
			sleep_ms(10);
		want(EACCES, try_hello(&v, 0, &hello));
	}
	victim_close(&v);
}

/* ---- after the handshake ----------------------------------------------- */

/* Every frame type with every short payload, on a control connection. At worst that connection
 * ends. */
static void control__hostile_frames(void **state)
{
	unsigned char payload[256];
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (uint16_t type = 0; type <= WH_FRAME_TYPE_END + 1; type++)
		for (size_t length = 0; length < sizeof(payload);
		     length += SCALE(length < 20 ? 1 : 31, 17)) {
			victim_greet(&v);
			pattern_fill(payload, length, 0, type * 1000 + length);
			if (length % 3 == 0)
				memset(payload, length % 2 ? 0xff : 0, length);
			raw_send_frame(v.control, type, (uint16_t)(length % 4), payload, length);
			raw_send_frame(v.control, WH_FRAME_PING, 0, "12345678", 8);
		}
	victim_greet(&v);
	victim_close(&v);
}

static void control__frames_cut_off(void **state)
{
	uint8_t bytes[WH_FRAME_HEADER + 8] = { 8 };
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	wh_put16(bytes + 4, WH_FRAME_PING);
	for (size_t cut = 0; cut < sizeof(bytes); cut++) {
		victim_greet(&v);
		want(0, send_all(v.control, bytes, cut));
		shutdown(v.control, SHUT_WR);
		want_true(raw_closes(v.control, SOON), "cut at %zu: still open", cut);
	}
	/* A frame whose announced length never arrives delays nobody. */
	victim_greet(&v);
	wh_put32(bytes, WH_FRAME_MAX);
	wh_put16(bytes + 4, WH_FRAME_NOTIFY);
	want(0, send_all(v.control, bytes, sizeof(bytes)));
	victim_want_well(&v);
	victim_close(&v);
}

/* Send as much as the socket takes within `ms`. The number of bytes. */
static uint64_t flood(int fd, uint16_t type, const void *payload, size_t length, int64_t ms)
{
	int64_t end = now() + ms * MS;
	uint64_t sent = 0;
	static char bytes[WH_FRAME_HEADER + 16 + WH_NOTIFICATION_MAX];
	struct wh_frame frame = { .length = (uint32_t)length, .type = type };
	size_t part = 0;

	wh_frame_encode((uint8_t *)bytes, &frame);
	memcpy(bytes + WH_FRAME_HEADER, payload, length);
	while (now() < end) {
		ssize_t n = send(fd, bytes + part, WH_FRAME_HEADER + length - part,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno != EAGAIN)
			break;
		if (n < 0) {
			sleep_ms(1);
			continue;
		}
		sent += (uint64_t)n;
		part = (part + (size_t)n) % (WH_FRAME_HEADER + length);
	}
	return sent;
}

/* Notifications that nobody receives and pings whose answers nobody reads: memory stays bounded. */
static void control__floods(void **state)
{
	static unsigned char note[16 + WH_NOTIFICATION_MAX];
	struct victim v;
	uint64_t before, after;

	(void)state;
	victim_open(&v, 5000);
	victim_want_well(&v);
	before = child_resident(v.f.child);
	flood(v.control, WH_FRAME_NOTIFY, note, sizeof(note), 1500);
	victim_want_well(&v);
	victim_greet(&v);
	flood(v.control, WH_FRAME_PING, note, 8, 1000);
	victim_want_well(&v);
	victim_greet(&v);
	flood(v.control, WH_FRAME_ABORT, note, 8, 500);
	after = child_resident(v.f.child);
	/* At most 16 MiB of notifications are kept. */
	want_true(after < before + SCALE(48, 400) * MIB, "it has grown from %llu to %llu MiB",
		  (unsigned long long)(before / MIB), (unsigned long long)(after / MIB));
	victim_close(&v);
}

/* ---- silence ----------------------------------------------------------- */

static void silence__is_dropped(void **state)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX];
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	struct victim v;
	int fds[4];

	(void)state;
	raw_hello_bytes(bytes, &hello);
	victim_open(&v, TIMEOUT);
	for (int i = 0; i < 4; i++) {
		fds[i] = connect_to(&v, i % 2);
		if (i >= 2)
			want(0, send_all(fds[i], bytes, 20));
	}
	for (int i = 0; i < 4; i++) {
		want_true(raw_closes(fds[i], SOON), "silent connection %d is still open", i);
		close(fds[i]);
	}
	victim_close(&v);
}

/* A byte now and then does not prolong the time-out. */
static void silence__trickle(void **state)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX];
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	struct victim v;
	int fd;
	bool closed = false;

	(void)state;
	raw_hello_bytes(bytes, &hello);
	victim_open(&v, TIMEOUT);
	fd = connect_to(&v, 0);
	for (int i = 0; i < 60 && !closed; i++) {
		send_all(fd, bytes + i, 1);
		closed = raw_closes(fd, TIMEOUT / 4 * SCALE(1, 4));
	}
	want_true(closed, "a HELLO may take for ever");
	close(fd);
	victim_close(&v);
}

/* A session that falls silent is not kept for ever. */
static void silence__session(void **state)
{
	struct victim v;

	(void)state;
	victim_open(&v, 200);
	/* An engine waits at least 10 s. */
	want_true(raw_closes(v.control, 15000 + SOON), "a silent session is still open");
	victim_close(&v);
}

static void silence__five_hundred(void **state)
{
	enum { COUNT = 500 };
	static int fds[COUNT];
	struct wh_peer *peer;
	struct victim v;
	int64_t before;

	(void)state;
	victim_open(&v, 2000);
	for (int i = 0; i < COUNT; i++)
		fds[i] = connect_to(&v, 0);
	before = quiet_now();
	want(0, wh_peer_open(v.f.engine, v.f.child->url, NULL, &peer));
	want_true(quiet_now() - before < SCALE(1, 10) * SECOND, "a good peer took %lld ms",
		  (long long)((quiet_now() - before) / MS));
	want(0, wh_peer_close(peer));
	victim_want_well(&v);
	for (int i = 0; i < COUNT; i++)
		close(fds[i]);
	victim_close(&v);
}

/* ---- MAP on the unix socket -------------------------------------------- */

/* Ask for a region's file descriptor. The descriptor, or -1. */
static int ask_map(int fd, uint64_t region)
{
	uint8_t payload[WH_MAP_SIZE], bytes[1024];
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { bytes, sizeof(bytes) };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header;
	int got = -1;

	wh_put32(wh_put64(payload, region), 0);
	if (raw_send_frame(fd, WH_FRAME_MAP, 0, payload, sizeof(payload)) ||
	    recvmsg(fd, &message, MSG_CMSG_CLOEXEC) <= 0)
		return -1;
	header = CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_type == SCM_RIGHTS)
		memcpy(&got, CMSG_DATA(header), sizeof(got));
	return got;
}

static int greet_shm(struct victim *v)
{
	struct wh_hello hello = raw_hello_of(WH_ROLE_LOCAL, &v->welcome), welcome;
	int fd = connect_to(v, 1);

	want(0, raw_greet(fd, &hello, &welcome));
	return fd;
}

static void want_no_map(struct victim *v, uint64_t region)
{
	int fd = greet_shm(v);

	want(-1, ask_map(fd, region));
	close(fd);
}

/* Only published regions that cover a whole shareable allocation can be mapped. */
static void map__what_is_not_published(void **state)
{
	struct victim v;

	(void)state;
	victim_open(&v, 5000);
	want_no_map(&v, 0);
	want_no_map(&v, v.none);
	want_no_map(&v, v.dead);
	want_no_map(&v, v.rw);
	want_no_map(&v, v.ro);
	want_no_map(&v, v.f.remote.id);
	want_no_map(&v, v.dead + 1000);
	want_no_map(&v, UINT64_MAX);
	victim_close(&v);
}

/* A region of the victim with an allocation of its own. */
static int region_to_map(struct victim *v, uint32_t access, uint64_t *id)
{
	struct child *child = v->f.child;
	int memory = child_memory(child, WH_MEMORY_SHARED, 8192);

	return child_region(child, memory, 0, 8192, NULL, access, id);
}

static bool is_writable(int fd)
{
	void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at != MAP_FAILED)
		munmap(at, 4096);
	return at != MAP_FAILED || write(fd, "x", 1) > 0;
}

/* The descriptor gives no more rights than the region grants, and cannot truncate the owner's
 * memory. */
static void map__rights(void **state)
{
	struct victim v;
	char path[64];
	uint64_t ro, rw;
	int fd, map, again;

	(void)state;
	victim_open(&v, 5000);
	region_to_map(&v, WH_ACCESS_READ, &ro);
	region_to_map(&v, ACCESS_BOTH, &rw);
	fd = greet_shm(&v);
	map = ask_map(fd, ro);
	want_true(map >= 0, "a published region cannot be mapped");
	want_true(!is_writable(map), "a read-only region can be written");
	want_true(ftruncate(map, 0) != 0, "a read-only region can be cut off");
	/* Reopened, as /proc permits to the same user. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", map);
	again = open(path, O_RDWR | O_CLOEXEC);
	want_true(again < 0 || !is_writable(again),
		  "a read-only region opened again can be written");
	if (again >= 0)
		close(again);
	close(map);
	map = ask_map(fd, rw);
	want_true(map >= 0 && is_writable(map), "a published region cannot be mapped");
	want_true(ftruncate(map, 0) != 0 && ftruncate(map, 4096) != 0,
		  "the owner's memory can be cut off");
	close(map);
	close(fd);
	victim_close(&v);
}

static void map__hostile_frames(void **state)
{
	unsigned char payload[64];
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (uint16_t type = 0; type <= WH_FRAME_TYPE_END + 1; type++)
		for (size_t length = 0; length < sizeof(payload); length += SCALE(5, 21)) {
			int fd;

			victim_greet(&v);
			fd = greet_shm(&v);
			pattern_fill(payload, length, 0, type + length);
			raw_send_frame(fd, type, 0, payload, length);
			raw_send_frame(fd, WH_FRAME_MAP, 0, payload, 3);
			close(fd);
		}
	victim_greet(&v);
	victim_close(&v);
}

/* A session that maps a region and does not release it cannot block the owner for ever. */
static void map__not_let_go(void **state)
{
	struct victim v;
	int fd, map, error, region;
	int64_t before;
	uint64_t id;

	(void)state;
	victim_open(&v, TIMEOUT);
	region = region_to_map(&v, ACCESS_BOTH, &id);
	fd = greet_shm(&v);
	map = ask_map(fd, id);
	want_true(map >= 0, "a published region cannot be mapped");
	before = quiet_now();
	error = child_unregister(v.f.child, region);
	want(-EBUSY, error);
	want_true(quiet_now() - before < SOON * MS, "it took %lld ms",
		  (long long)((quiet_now() - before) / MS));
	want_no_map(&v, id);
	close(map);
	close(fd);
	close(v.control);
	v.control = -1;
	for (int64_t end = now() + PATIENCE;
	     (error = child_unregister(v.f.child, region)) == -EBUSY && now() < end;)
		sleep_ms(10);
	want(0, error);
	victim_close(&v);
}

/* A session that pings and never says that it has let go is ended, and then nobody waits for it. */
static void map__never_let_go(void **state)
{
	static const uint8_t ping[8];
	struct victim v;
	uint64_t id;
	int region, fd, map, error = -1;

	(void)state;
	victim_open(&v, 200);
	region = region_to_map(&v, ACCESS_BOTH, &id);
	fd = greet_shm(&v);
	map = ask_map(fd, id);
	want_true(map >= 0, "a published region cannot be mapped");
	want(-EBUSY, child_unregister(v.f.child, region));
	for (int64_t end = now() + SOON * MS; error && now() < end;)
		error = !raw_send_frame(v.control, WH_FRAME_PING, 0, ping, sizeof(ping)) &&
			!raw_closes(v.control, 200);
	want_true(!error, "it is still a session");
	want(0, child_unregister(v.f.child, region));
	close(map);
	close(fd);
	close(v.control);
	v.control = -1;
	victim_close(&v);
}

static const struct CMUnitTest tests[] = {
	TEST(garbage__any_length),
	TEST(hello__cut_at_every_byte),
	TEST(hello__every_byte_changed),
	TEST(hello__one_byte_at_a_time),
	TEST(lengths__huge),
	TEST(refused__versions),
	TEST(refused__roles),
	TEST(refused__sessions),
	TEST(control__hostile_frames),
	TEST(control__frames_cut_off),
	TEST(control__floods),
	TEST(silence__is_dropped),
	TEST(silence__trickle),
	TEST(silence__session),
	TEST(silence__five_hundred),
	TEST(map__what_is_not_published),
	TEST(map__rights),
	TEST(map__hostile_frames),
	TEST(map__not_let_go),
	TEST(map__never_let_go),
};

HARNESS_MAIN("hostile-handshake", tests)
