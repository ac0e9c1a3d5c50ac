/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: waits hostile */
/* hostile-trust-owner.c: owners that an initiator must not trust
 *
 * Engines with different keys or of different users, over loopback, too; strangers that answer in
 * place of an owner, and relays. The initiator connects to none of them and reveals nothing. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "lib/fixture.h"
#include "lib/raw.h"
#include "platform/owner.h"

#define SOON 60000 /* ms; ends a test that hangs */
#define NOBODY 65534

static const uint8_t other_key[WH_KEY_SIZE] = { 1, 2, 3 };

/* ---- engines with different keys --------------------------------------- */

static void engines__other_key(void **state)
{
	struct child_options options = { .config = { SHARED_KEY } };
	struct child *keyed = child_start(&options), *plain = child_start(NULL);
	static const char *const config[] = { SHARED_KEY, NULL };
	struct wh_engine *engine = engine_open(NULL, "none", config);
	struct wh_peer *peer;
	char text[256];

	(void)state;
	want_text(-EACCES, "keyfile", wh_peer_open(engine, plain->url, NULL, &peer));
	want_true(!strstr(wh_error_text(), "6b65"), "it says the key: %s", wh_error_text());
	want(-EACCES, child_peer(plain, keyed->url, text));
	want_true(strstr(text, "does not hold this engine's key") && strstr(text, "wherry.key"),
		  "%s", text);
	want(0, wh_peer_open(engine, keyed->url, NULL, &peer));
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
	child_exit(plain);
	child_exit(keyed);
}

/* Another user of this host, over loopback, in both directions. */
static void engines__other_user(void **state)
{
	struct child_options options = { .user = NOBODY };
	struct child *nobody = child_start(&options), *root = child_start(NULL);
	char text[256];

	(void)state;
	want(-EACCES, child_peer(nobody, root->url, text));
	want_true(strstr(text, "does not hold this engine's key") || strstr(text, "user 65534"),
		  "%s", text);
	want(-EACCES, child_peer(root, nobody->url, text));
	want_true(strstr(text, "does not hold this engine's key"), "%s", text);
	child_exit(nobody);
	child_exit(root);
}

/* Addresses beyond loopback need a configured key, both to listen on and to connect to. */
static void engines__not_of_this_host(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "0.0.0.0:0" };
	static const char *const key[] = { SHARED_KEY, NULL };
	struct wh_engine *engine;
	struct wh_peer *peer;

	(void)state;
	want_text(-EACCES, "wherry key make", wh_engine_open(&options, &engine));
	options.listen = "[::]:0";
	want_text(-EACCES, "keyfile", wh_engine_open(&options, &engine));
	options.listen = "0.0.0.0:0";
	options.config = key;
	want(0, wh_engine_open(&options, &engine));
	want(0, wh_engine_close(engine));
	engine = engine_open(NULL, NULL, NULL);
	want_text(-EACCES, "192.0.2.1:7", wh_peer_open(engine, "192.0.2.1:7", NULL, &peer));
	want_true(strstr(wh_error_text(), "keyfile"), "%s", wh_error_text());
	want(0, wh_engine_close(engine));
}

static void engines__bad_key_file(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	static const char *const missing[] = { "keyfile=/nowhere/wherry.key", NULL };
	static const char *const device[] = { "keyfile=/dev/zero", NULL };
	struct wh_engine *engine;

	(void)state;
	options.config = missing;
	want_text(-ENOENT, "/nowhere/wherry.key", wh_engine_open(&options, &engine));
	options.config = device;
	want_text(-EINVAL, "/dev/zero", wh_engine_open(&options, &engine));
}

/* The time to connect and prove, both sides, over loopback: the best of many attempts, and of more
 * on a busy machine. */
static void engines__soon(void **state)
{
	struct child *child = child_start(NULL);
	struct wh_engine *engine = engine_open(NULL, "none", NULL);
	int64_t best = INT64_MAX, all = 0, begun = quiet_now();
	struct wh_peer *peer;
	int count;

	(void)state;
	for (count = 0; count < 100 || (best >= SCALE(1, 50) * MS && quiet_now() - begun < SECOND);
	     count++) {
		int64_t before = now(), took;

		want(0, wh_peer_open(engine, child->url, NULL, &peer));
		took = now() - before;
		best = took < best ? took : best;
		all += took;
		want(0, wh_peer_close(peer));
	}
	fprintf(stderr, "a peer is opened in %.2f ms at best, %.2f on average\n", (double)best / MS,
		(double)all / count / MS);
	want_true(best < SCALE(1, 50) * MS, "%lld us", (long long)(best / 1000));
	want(0, wh_engine_close(engine));
	child_exit(child);
}

/* ---- an initiator and bad owners --------------------------------------- */

/* Answers one connection in place of an owner. */
struct stranger {
	pthread_t thread;
	int listener;
	char url[64];
	const char *relay; /* forward the HELLO to this engine, and its answer back */
	const uint8_t *key; /* answer with this key; NULL: send a region list without a proof */
	bool silent;
	bool got_proof; /* the initiator has sent more than HELLO */
};

static void *stranger_run(void *arg)
{
	struct wh_region_record record = { .id = 7,
					   .address = 4096,
					   .length = 4096,
					   .access = 3,
					   .kind = WH_MEMORY_PAGEABLE,
					   .name = "target" };
	uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX], answer[WH_FRAME_HEADER + WH_HELLO_MAX];
	struct stranger *me = arg;
	struct wh_proofs proofs;
	struct wh_hello welcome = raw_hello(WH_ROLE_CONTROL);
	struct wh_frame frame;
	int fd = accept4(me->listener, NULL, NULL, SOCK_CLOEXEC), length, far = -1;
	struct timeval patience = { .tv_sec = 5 };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));
	welcome.session = 1;
	if (me->relay) {
		far = raw_connect(me->relay);
		raw_send_frame(far, WH_FRAME_HELLO, 0, bytes, (size_t)length);
		length = raw_receive_frame(far, &frame, answer, sizeof(answer));
		raw_send_frame(fd, frame.type, 0, answer, (size_t)length);
	} else if (me->key) {
		length = raw_welcome(bytes, (size_t)length, &welcome, me->key, answer, &proofs);
		raw_send_frame(fd, WH_FRAME_WELCOME, 0, answer, (size_t)length);
	} else if (!me->silent) {
		/* An owner that proves nothing: the region list at once. */
		raw_send_frame(fd, WH_FRAME_REGIONS, WH_FRAME_LAST, answer,
			       raw_regions(answer, &record));
	}
	length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));
	me->got_proof = length >= 0;
	/* The proof, and the first question. */
	for (int i = 0; i < 2 && far >= 0 && length >= 0; i++) {
		raw_send_frame(far, frame.type, 0, bytes, (size_t)length);
		if (!i)
			length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));
	}
	if (far >= 0 && length >= 0) {
		length = raw_receive_frame(far, &frame, bytes, sizeof(bytes));
		if (length >= 0)
			raw_send_frame(fd, frame.type, frame.flags, bytes, (size_t)length);
		raw_closes(fd, SOON);
	}
	if (far >= 0)
		close(far);
	close(fd);
	return NULL;
}

static void stranger_listen(struct stranger *me, const char *url)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int one = 1;

	if (url)
		address.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
	raw_key(); /* before the thread starts */
	me->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(me->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	want(0, bind(me->listener, (struct sockaddr *)&address, sizeof(address)));
	want(0, listen(me->listener, 64));
	want(0, getsockname(me->listener, (struct sockaddr *)&address, &length));
	snprintf(me->url, sizeof(me->url), "wherry://127.0.0.1:%d", ntohs(address.sin_port));
	want(0, pthread_create(&me->thread, NULL, stranger_run, me));
}

static void stranger_end(struct stranger *me)
{
	pthread_join(me->thread, NULL);
	close(me->listener);
}

static void initiator__owner_without_key(void **state)
{
	struct wh_peer_options options = { .size = sizeof(options),
					   .timeout = SCALE(1, 4) * SECOND };
	static const int errors[] = { -EACCES, -EPROTO };
	struct wh_engine *engine = engine_open(NULL, "none", NULL);
	struct wh_peer *peer;

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct stranger me = { .key = i ? NULL : other_key };

		stranger_listen(&me, NULL);
		want(errors[i], wh_peer_open(engine, me.url, &options, &peer));
		stranger_end(&me);
		want_true(!me.got_proof, "it has proved itself to a stranger");
	}
	want(0, wh_engine_close(engine));
}

/* A stranger returns to an engine what that engine has sent. The engine must not take the stranger
 * for itself. */
static void initiator__reflected(void **state)
{
	struct wh_engine *engine = engine_open(NULL, NULL, NULL);
	struct stranger me = { .relay = wh_engine_url(engine) };
	struct wh_peer *peer;

	(void)state;
	stranger_listen(&me, NULL);
	want(-EPROTO, wh_peer_open(engine, me.url, NULL, &peer));
	stranger_end(&me);
	want(0, wh_engine_close(engine));
}

/* A stranger takes the port of an engine that has ended: the peer stays lost, and reveals
 * nothing. */
static void initiator__port_taken_over(void **state)
{
	struct wh_peer_info info = { .size = sizeof(info) };
	struct fixture f;
	char url[96];

	(void)state;
	fixture_open(&f, &route_tcp4, 64 * KIB);
	want(0, move(&f, WH_WRITE, 0, 0, 1000));
	snprintf(url, sizeof(url), "%s", f.child->url);
	child_kill(f.child);
	f.child = NULL;
	for (int i = 0; i < 3; i++) {
		struct stranger me = { .key = i ? NULL : other_key, .silent = i == 2 };

		stranger_listen(&me, url);
		stranger_end(&me);
		want_true(!me.got_proof, "it has proved itself to a stranger");
		want(0, wh_peer_info(f.peer, &info));
		want(WH_PEER_LOST, info.state);
	}
	want(-ECONNRESET, move(&f, WH_WRITE, 0, 0, 1000));
	fixture_close_initiator(&f);
}

/* ---- a relay by another user, without a key ---------------------------- */

static const char *missing_owners(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t length = sizeof(address);
	uid_t user;
	int error = bind(listener, (struct sockaddr *)&address, sizeof(address)) ||
		    listen(listener, 1) ||
		    getsockname(listener, (struct sockaddr *)&address, &length) ||
		    connect(fd, (struct sockaddr *)&address, sizeof(address)) ||
		    wh_socket_owner(fd, &user);

	close(listener);
	close(fd);
	return geteuid() ? "only root can become another user" :
	       error     ? "the kernel does not tell whose a socket is" :
			   NULL;
}

static const struct route needs_owners = { .name = "owners", .missing = missing_owners };

/* Forward bytes in both directions until one side closes. */
static void relay_bytes(int one, int other)
{
	struct pollfd fds[] = { { one, POLLIN, 0 }, { other, POLLIN, 0 } };
	char bytes[4096];
	ssize_t got;

	while (poll(fds, 2, 10000) > 0)
		for (int i = 0; i < 2; i++) {
			if (!fds[i].revents)
				continue;
			got = recv(fds[i].fd, bytes, sizeof(bytes), 0);
			if (got <= 0 || send_all(fds[!i].fd, bytes, (size_t)got))
				return;
		}
}

/* As another user, before the first connection: relay to `url`, or be an owner with the right
 * key. */
static pid_t fork_other_user(const char *url, char out[64])
{
	struct stranger me = { .key = url ? NULL : raw_key() };
	int pipes[2], one, other;
	in_port_t port;
	pid_t pid;

	want(0, pipe(pipes));
	pid = fork();
	if (pid == 0) {
		struct sockaddr_in address = { .sin_family = AF_INET,
					       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		socklen_t length = sizeof(address);

		alarm(15);
		if (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY))
			_exit(1);
		me.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (bind(me.listener, (struct sockaddr *)&address, sizeof(address)) ||
		    listen(me.listener, 8) ||
		    getsockname(me.listener, (struct sockaddr *)&address, &length) ||
		    write(pipes[1], &address.sin_port, 2) != 2)
			_exit(1);
		if (!url) {
			stranger_run(&me);
			_exit(me.got_proof);
		}
		one = accept4(me.listener, NULL, NULL, SOCK_CLOEXEC);
		other = raw_connect(url);
		relay_bytes(one, other);
		_exit(0);
	}
	want(2, read(pipes[0], &port, 2));
	close(pipes[0]);
	close(pipes[1]);
	snprintf(out, 64, "wherry://127.0.0.1:%d", ntohs(port));
	return pid;
}

static void relay__of_another_user(void **state)
{
	struct wh_engine *engine = engine_open(NULL, "none", NULL);
	struct child *child = child_start(NULL);
	struct wh_peer *peer;
	char url[64];
	int status;
	pid_t pid;

	(void)state;
	/* The owner refuses that user. */
	pid = fork_other_user(child->url, url);
	want_text(-EACCES, "user 65534", wh_peer_open(engine, url, NULL, &peer));
	want(pid, waitpid(pid, &status, 0));
	want(0, status);
	/* The initiator refuses that user, even with the right proof, and sends no proof. */
	pid = fork_other_user(NULL, url);
	want_text(-EACCES, "user 65534", wh_peer_open(engine, url, NULL, &peer));
	want(pid, waitpid(pid, &status, 0));
	want(0, status);
	want(0, wh_engine_close(engine));
	child_exit(child);
}

static const struct CMUnitTest tests[] = {
	TEST(engines__other_key),
	TEST_NEEDS(engines__other_user, needs_root),
	TEST(engines__not_of_this_host),
	TEST(engines__bad_key_file),
	TEST(engines__soon),
	TEST(initiator__owner_without_key),
	TEST(initiator__reflected),
	TEST(initiator__port_taken_over),
	TEST_NEEDS(relay__of_another_user, needs_owners),
};

HARNESS_MAIN("hostile-trust-owner", tests)
