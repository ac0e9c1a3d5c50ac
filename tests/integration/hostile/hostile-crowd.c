/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: waits hostile */
/* hostile-crowd.c: very many strangers: endless connections, port scans, half-open connections, SYN
 * floods. A well-behaved peer gets in all the while, from another address and from theirs. */
#include <arpa/inet.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "lib/network.h"
#include "lib/victim.h"

#define SOON 60000 /* ms; ends a test that hangs */

static uint16_t port_of(const struct victim *v)
{
	return (uint16_t)atoi(strrchr(v->f.child->url, ':') + 1);
}

/* Connect from this loopback address. The socket, or -1. */
static int connect_from(const char *address, uint16_t port)
{
	struct sockaddr_in from = { .sin_family = AF_INET }, to = from;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, address, &from.sin_addr);
	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	to.sin_port = htons(port);
	if (fd >= 0 && !bind(fd, (struct sockaddr *)&from, sizeof(from)) &&
	    !connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* ---- ten thousand ------------------------------------------------------ */

#define CROWD 10000
#define KEPT 2000 /* open at a time */

struct crowd {
	pthread_t thread;
	uint16_t port;
	_Atomic int made;
	_Atomic bool over;
	int fds[KEPT];
};

/* Connect at least CROWD times, and until the test no longer needs it. */
static void *be_crowd(void *argument)
{
	struct crowd *crowd = argument;
	int made = 0;

	while (made < CROWD || !atomic_load(&crowd->over)) {
		int *fd = &crowd->fds[made % KEPT];

		if (*fd >= 0)
			close(*fd);
		*fd = connect_from("127.0.0.1", crowd->port);
		if (*fd < 0)
			break;
		atomic_store(&crowd->made, ++made);
	}
	return NULL;
}

/* A peer shakes hands while 127.0.0.1 opens a thousand or more connections a second. */
static void good_peer(struct victim *v, const char *from)
{
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	int64_t end = now() + PATIENCE;
	struct raw_shake shake;
	int fd, error;

	do {
		fd = connect_from(from, port_of(v));
		error = fd < 0 || raw_shake(fd, &hello, NULL, &shake) ||
			raw_prove(fd, shake.proofs.initiator) || raw_count_regions(fd) != 4;
		if (fd >= 0)
			close(fd);
	} while (error && now() < end);
	want_true(!error, "who comes from %s does not get in", from);
}

static void crowd__ten_thousand(void **state)
{
	static struct crowd crowd;
	unsigned int fds;
	struct wh_peer *peer;
	uint64_t resident;
	struct victim v;

	(void)state;
	victim_open(&v, 5000);
	fds = child_fds(v.f.child);
	resident = child_resident(v.f.child);
	crowd.port = port_of(&v);
	for (int i = 0; i < KEPT; i++)
		crowd.fds[i] = -1;
	want(0, pthread_create(&crowd.thread, NULL, be_crowd, &crowd));
	while (atomic_load(&crowd.made) < KEPT)
		sleep_ms(1);
	for (int i = 0; i < SCALE(20, 5); i++) {
		good_peer(&v, "127.0.0.2");
		good_peer(&v, "127.0.0.1");
		/* The same through an application: its engine connects from 127.0.0.1, too. */
		want(0, wh_peer_open(v.f.engine, v.f.child->url, NULL, &peer));
		want(0, wh_peer_close(peer));
		round_trip(&v.f, 64, 64, 100000, (uint64_t)i);
	}
	/* At most 256 of the crowd, and what the rest of this test holds. */
	want_true(child_fds(v.f.child) < fds + 300, "it has %u descriptors", child_fds(v.f.child));
	/* A sanitizer delays the release of memory. */
	want_true(child_resident(v.f.child) < resident + SCALE(16, 64) * MIB,
		  "it has grown by %llu KiB",
		  (unsigned long long)(child_resident(v.f.child) - resident) / 1024);
	atomic_store(&crowd.over, true);
	want(0, pthread_join(crowd.thread, NULL));
	want_true(atomic_load(&crowd.made) >= CROWD, "there were but %d", atomic_load(&crowd.made));
	for (int i = 0; i < KEPT; i++)
		close(crowd.fds[i]);
	victim_close(&v);
}

/* ---- a port scan ------------------------------------------------------- */

static void send_text(int fd, const char *text)
{
	ssize_t rc = send(fd, text, strlen(text), MSG_NOSIGNAL);

	(void)rc;
}

/* Connect and leave: by a close, by a reset, after the probes that scanners send. */
static void scan__leaves_nothing(void **state)
{
	static const char *const probes[] = {
		NULL,
		"",
		"\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n",
		"OPTIONS * RTSP/1.0\r\n\r\n",
		"HELP\r\n",
		"\x16\x03\x01\x02\x01\x01\xfc\x03\x03",
		"SSH-2.0-scan\r\n",
		"EHLO scan\r\n",
		"\x80\x80\x01\x03\x01",
	};
	const struct linger reset = { .l_onoff = 1 };
	unsigned int fds;
	struct victim v;
	int64_t end;

	(void)state;
	victim_open(&v, 2000);
	fds = child_fds(v.f.child);
	for (int i = 0; i < SCALE(1000, 300); i++) {
		const char *probe = probes[i / 2 % 10];
		int fd = connect_from("127.0.0.3", port_of(&v));

		want_true(fd >= 0, "connection %d: %s", i, strerror(errno));
		if (probe)
			send_text(fd, probe);
		if (i % 2)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		close(fd);
	}
	end = now() + PATIENCE;
	while (child_fds(v.f.child) > fds && now() < end)
		sleep_ms(10);
	want_true(child_fds(v.f.child) <= fds, "it has %u descriptors, and had %u",
		  child_fds(v.f.child), fds);
	victim_close(&v);
}

/* ---- half-closed connections ------------------------------------------- */

/* A client that stops sending but still listens: at every stage of a session it is dropped at once.
 * A request complete before that is answered or not; nothing else arrives. */
static void closed__half(void **state)
{
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	struct wh_extent extent = { .offset = 0, .length = VICTIM_REGION };
	struct raw_shake shake;
	unsigned int fds;
	struct victim v;
	int64_t end;
	int fd;

	(void)state;
	victim_open(&v, 600000); /* long: a timeout is not what ends it */
	fds = child_fds(v.f.child);
	for (int i = 0; i < SCALE(50, 10); i++) {
		/* Before the first byte. */
		fd = raw_connect(v.f.child->url);
		shutdown(fd, SHUT_WR);
		want_true(raw_closes(fd, SOON), "silent, and still open");
		close(fd);
		/* After HELLO, before the proof. */
		fd = raw_connect(v.f.child->url);
		want(0, raw_shake(fd, &hello, NULL, &shake));
		shutdown(fd, SHUT_WR);
		want_true(raw_closes(fd, SOON), "not proved, and still open");
		close(fd);
		/* A data connection with a request. */
		victim_greet_data(&v);
		extent.region = v.rw;
		want(0, raw_request(v.data, WH_READ, 1, &extent, 1, NULL, 0));
		shutdown(v.data, SHUT_WR);
		want_true(raw_closes(v.data, SOON), "a data connection is still open");
		/* The control connection, with its session. */
		shutdown(v.control, SHUT_WR);
		want_true(raw_closes(v.control, SOON), "a session is still open");
		victim_greet(&v);
	}
	close(v.data);
	v.data = -1;
	end = now() + PATIENCE;
	while (child_fds(v.f.child) > fds && now() < end)
		sleep_ms(10);
	want_true(child_fds(v.f.child) <= fds, "it has %u descriptors, and had %u",
		  child_fds(v.f.child), fds);
	victim_close(&v);
}

/* ---- SYN floods -------------------------------------------------------- */

static uint16_t checksum(const void *data, size_t length, uint32_t sum)
{
	const uint8_t *at = data;

	for (size_t i = 0; i < length; i += 2)
		sum += (uint32_t)at[i] << 8 | (i + 1 < length ? at[i + 1] : 0);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* Send a SYN from an address that never answers. */
static bool send_syn(int raw, uint32_t from, uint16_t port, uint32_t number)
{
	struct {
		struct iphdr ip;
		struct tcphdr tcp;
	} packet = { .ip = { .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP } };
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	uint32_t sum = IPPROTO_TCP + sizeof(packet.tcp);

	packet.ip.tot_len = htons(sizeof(packet));
	packet.ip.saddr = htonl(from);
	packet.ip.daddr = to.sin_addr.s_addr;
	packet.tcp.source = htons((uint16_t)(1024 + number % 60000));
	packet.tcp.dest = htons(port);
	packet.tcp.seq = htonl(number);
	packet.tcp.doff = 5;
	packet.tcp.syn = 1;
	packet.tcp.window = htons(1024);
	for (int i = 0; i < 2; i++) {
		sum += (i ? INADDR_LOOPBACK : from) >> 16;
		sum += (i ? INADDR_LOOPBACK : from) & 0xffff;
	}
	packet.tcp.check = htons(checksum(&packet.tcp, sizeof(packet.tcp), sum));
	return sendto(raw, &packet, sizeof(packet), 0, (struct sockaddr *)&to, sizeof(to)) ==
	       sizeof(packet);
}

static unsigned int half_open(uint16_t port)
{
	char line[256], local[16];
	unsigned int count = 0;
	FILE *file = fopen("/proc/net/tcp", "re");

	snprintf(local, sizeof(local), ":%04X ", port);
	while (file && fgets(line, sizeof(line), file))
		count += strstr(line, local) && strstr(line, " 03 ");
	if (file)
		fclose(file);
	return count;
}

/* The kernel holds these; the engine does not see them. The listener's backlog must leave space for
 * real clients. The test runs in a network of its own, where nobody answers with a reset. */
static void syn__never_finished(void **state)
{
	struct wh_peer *peer;
	struct victim v;
	unsigned int most = 0;
	int network, raw;

	(void)state;
	network = network_new();
	/* Send the answers to the loopback, where nobody takes them. */
	want(0, system("ip route add 192.0.2.0/24 dev lo"));
	raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
	want_true(raw >= 0, "%s", strerror(errno));
	victim_open(&v, 5000);
	for (uint32_t i = 0; i < 4000; i++) {
		/* 192.0.2.0/24 belongs to nobody. */
		want_true(send_syn(raw, 0xc0000200 + i % 254 + 1, port_of(&v), i), "%s",
			  strerror(errno));
		if (i % 500 == 0) {
			unsigned int count = half_open(port_of(&v));

			most = count > most ? count : most;
			want(0, wh_peer_open(v.f.engine, v.f.child->url, NULL, &peer));
			want(0, wh_peer_close(peer));
		}
	}
	want_true(most > 100, "%u handshakes were under way at the most: it was no flood", most);
	close(raw);
	victim_close(&v);
	network_leave();
	close(network);
}

static const struct CMUnitTest tests[] = {
	TEST(crowd__ten_thousand),
	TEST(scan__leaves_nothing),
	TEST(closed__half),
	TEST_NEEDS(syn__never_finished, needs_network),
};

HARNESS_MAIN("hostile-crowd", tests)
