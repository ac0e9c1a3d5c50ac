/* SPDX-License-Identifier: Apache-2.0 */
/* Who does not have the key, or only what was said by those who have it, gets nothing: not over
 * loopback, not as another user, and an engine gives nothing to an owner like that either. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "lib/victim.h"
#include "platform/owner.h"
#include "wire/bytes.h"

#define TIMEOUT 500 /* ms, of the victim */
#define SOON SCALE(5000, 20000)
#define NOBODY 65534

static const uint8_t other_key[WH_KEY_SIZE] = { 1, 2, 3 };

static int connect_to(const struct victim *v)
{
	int fd = raw_connect(v->f.child->url);

	want_true(fd >= 0, "it takes no connection: %s", strerror(errno));
	return fd;
}

/* The next thing that it says is a refusal with this errno, after which it closes; in any case no
 * list of regions. */
static void want_refusal(int fd, int error)
{
	uint8_t bytes[WH_REFUSAL_MAX + 8];
	char text[WH_REFUSAL_MAX];
	struct wh_frame frame;
	int said, length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	want_true(length > 0, "no answer");
	want(WH_FRAME_REFUSED, frame.type);
	want(0, wh_refusal_decode(bytes, (size_t)length, &said, text));
	want(error, said);
	want_true(raw_closes(fd, SOON), "it is still open");
	close(fd);
}

/* ---- to the owner ------------------------------------------------------ */

static void owner__other_key(void **state)
{
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	struct raw_shake shake;
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (int i = 0; i < 10; i++) {
		int fd = connect_to(&v);

		want(0, raw_shake(fd, &hello, other_key, &shake));
		want_true(memcmp(shake.proofs.owner, shake.said.auth + WH_NONCE_SIZE,
				 WH_PROOF_SIZE) != 0,
			  "a stranger can check its proof");
		want(0, raw_prove(fd, shake.proofs.initiator));
		want_refusal(fd, EACCES);
	}
	victim_close(&v);
}

/* A proof with any bit wrong, its own said back to it, and none. */
static void owner__wrong_proofs(void **state)
{
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	uint8_t proof[WH_PROOF_SIZE];
	struct raw_shake shake;
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (int i = 0; i < 8 * WH_PROOF_SIZE + 3; i += SCALE(1, 20)) {
		int fd = connect_to(&v);

		want(0, raw_shake(fd, &hello, NULL, &shake));
		memcpy(proof, shake.proofs.initiator, sizeof(proof));
		if (i < 8 * WH_PROOF_SIZE)
			proof[i / 8] ^= (uint8_t)(1 << i % 8);
		else if (i == 8 * WH_PROOF_SIZE)
			memcpy(proof, shake.proofs.owner, sizeof(proof));
		else if (i == 8 * WH_PROOF_SIZE + 1)
			memcpy(proof, shake.proofs.session, sizeof(proof));
		else
			memset(proof, 0, sizeof(proof));
		want(0, raw_prove(fd, proof));
		want_refusal(fd, EACCES);
	}
	victim_close(&v);
}

/* Everything that a good initiator has said, said once more: the nonce of the owner is another. */
static void owner__replayed(void **state)
{
	static const uint16_t roles[] = { WH_ROLE_CONTROL, WH_ROLE_DATA };
	struct raw_shake first, second;
	struct victim v;

	(void)state;
	victim_open(&v, 5000);
	for (int i = 0; i < 2; i++) {
		struct wh_hello hello =
			i ? raw_hello_of(roles[i], &v.welcome) : raw_hello(roles[i]);
		int fd = connect_to(&v), again = connect_to(&v);

		want(0, raw_shake(fd, &hello, NULL, &first));
		want(0, raw_prove(fd, first.proofs.initiator));
		want(0, raw_shake(again, &hello, NULL, &second));
		want_true(memcmp(first.said.auth, second.said.auth, WH_NONCE_SIZE) != 0,
			  "the owner's nonce recurs");
		want(0, raw_prove(again, first.proofs.initiator));
		want_refusal(again, EACCES);
		if (!i)
			want(4, raw_skip_regions(fd));
		close(fd);
	}
	victim_close(&v);
}

/* What was changed on the way: the owner has heard another HELLO than was said. */
static void owner__changed_on_the_way(void **state)
{
	struct wh_hello said = raw_hello(WH_ROLE_CONTROL), heard;
	struct raw_shake shake;
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (int i = 0; i < 6; i++) {
		uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX];
		struct wh_proofs proofs;
		size_t length;
		int fd = connect_to(&v);

		heard = said;
		switch (i) {
		case 0:
			heard.capabilities = 1;
			break;
		case 1:
			heard.epoch++;
			break;
		case 2:
			strcpy(heard.name, "another");
			break;
		case 3: /* as if the other side spoke nothing older, or nothing newer */
			heard.version_min = 0;
			break;
		case 4:
			heard.version_max++;
			break;
		default:
			heard.host[3]++;
		}
		want(0, raw_shake(fd, &heard, NULL, &shake));
		length = raw_hello_bytes(bytes, &said);
		want(0, wh_proofs_make(raw_crypto(), raw_key(), bytes + WH_FRAME_HEADER,
				       length - WH_FRAME_HEADER, shake.welcome,
				       shake.welcome_length, &proofs));
		want_true(memcmp(proofs.owner, shake.said.auth + WH_NONCE_SIZE, WH_PROOF_SIZE) != 0,
			  "change %d is not noticed by the initiator", i);
		want(0, raw_prove(fd, proofs.initiator));
		want_refusal(fd, EACCES);
	}
	victim_close(&v);
}

/* A hello as it was before there were proofs, and those with too little or too much in that place.
 */
static void owner__downgrade(void **state)
{
	static const uint16_t lengths[] = { 0, 1, 31, 33, 64, 255, 256 };
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL), welcome;
	struct victim v;
	int fd;

	(void)state;
	victim_open(&v, TIMEOUT);
	hello.version_min = hello.version_max = 1;
	fd = connect_to(&v);
	want(EPROTONOSUPPORT, raw_greet(fd, &hello, &welcome));
	close(fd);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		hello = raw_hello(WH_ROLE_CONTROL);
		hello.auth_length = lengths[i];
		fd = connect_to(&v);
		want(EPROTO, raw_greet(fd, &hello, &welcome));
		want_true(raw_closes(fd, SOON), "it is still open");
		close(fd);
	}
	victim_close(&v);
}

/* In place of PROVE: nothing, all of a session's frames, a part, something else, too much at once.
 */
static void owner__no_proof(void **state)
{
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	uint8_t bytes[WH_FRAME_HEADER + 512] = { 0 };
	struct raw_shake shake;
	struct victim v;
	int fd;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (uint16_t type = 0; type <= WH_FRAME_TYPE_END; type++)
		for (size_t length = 0; length < 100; length += type == WH_FRAME_PROVE ? 1 : 32) {
			if (type == WH_FRAME_PROVE && length == WH_PROOF_SIZE)
				continue;
			fd = connect_to(&v);
			want(0, raw_shake(fd, &hello, NULL, &shake));
			/* The owner may have closed it before the payload. */
			raw_send_frame(fd, type, 0, bytes, length);
			want_true(raw_closes(fd, SOON), "type %u, %zu bytes: still open", type,
				  length);
			close(fd);
		}
	for (size_t cut = 0; cut < WH_PROVE_SIZE; cut += SCALE(1, 7)) {
		fd = connect_to(&v);
		want(0, raw_shake(fd, &hello, NULL, &shake));
		wh_frame_encode(bytes, &(struct wh_frame){ WH_PROOF_SIZE, WH_FRAME_PROVE, 0 });
		memcpy(bytes + WH_FRAME_HEADER, shake.proofs.initiator, WH_PROOF_SIZE);
		want(0, raw_send(fd, bytes, cut));
		shutdown(fd, SHUT_WR);
		want_true(raw_closes(fd, SOON), "cut at %zu: still open", cut);
		close(fd);
	}
	/* What comes along with a good proof is not lost. */
	fd = connect_to(&v);
	want(0, raw_shake(fd, &hello, NULL, &shake));
	memcpy(bytes + WH_FRAME_HEADER, shake.proofs.initiator, WH_PROOF_SIZE);
	wh_frame_encode(bytes + WH_PROVE_SIZE, &(struct wh_frame){ 8, WH_FRAME_PING, 0 });
	want(0, raw_send(fd, bytes, WH_PROVE_SIZE + WH_FRAME_HEADER + 8));
	want(4, raw_skip_regions(fd));
	{
		struct wh_frame frame;

		want(8, raw_receive_frame(fd, &frame, bytes, 8));
		want(WH_FRAME_PONG, frame.type);
	}
	close(fd);
	victim_close(&v);
}

/* Who says hello, and then takes his time, has no more of it than who says nothing. */
static void owner__slow_proof(void **state)
{
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	struct raw_shake shake;
	struct victim v;
	bool closed = false;
	int fds[2];

	(void)state;
	victim_open(&v, TIMEOUT);
	for (int i = 0; i < 2; i++) {
		fds[i] = connect_to(&v);
		want(0, raw_shake(fds[i], &hello, NULL, &shake));
	}
	want_true(raw_closes(fds[0], SOON), "a silent one is still open");
	for (int i = 0; i < 40 && !closed; i++) {
		raw_send(fds[1], "", 1);
		closed = raw_closes(fds[1], TIMEOUT / 4 * SCALE(1, 4));
	}
	want_true(closed, "a proof may take for ever");
	close(fds[0]);
	close(fds[1]);
	victim_close(&v);
}

/* A session's key opens that session alone, even for those who have the cluster's. */
static void owner__key_of_another_session(void **state)
{
	struct wh_hello welcome, hello;
	struct raw_shake shake;
	struct victim v;
	int second, fd;

	(void)state;
	victim_open(&v, 5000);
	second = raw_control(v.f.child->url, &welcome);
	want_true(second >= 0, "no second session");
	want(4, raw_skip_regions(second));
	/* The first session's number, with the cluster key. */
	hello = raw_hello_of(WH_ROLE_DATA, &v.welcome);
	fd = connect_to(&v);
	want(0, raw_shake(fd, &hello, raw_key(), &shake));
	want(0, raw_prove(fd, shake.proofs.initiator));
	want_refusal(fd, EACCES);
	/* And with its own key it goes well. */
	fd = raw_data(v.f.child->url, &v.welcome);
	want_true(fd >= 0, "its own is refused");
	close(fd);
	close(second);
	victim_close(&v);
}

/* What many strangers from one address do not say, those from another need not wait for. */
static void owner__many_from_one_place(void **state)
{
	enum { STRANGERS = 300 };
	static int fds[STRANGERS];
	struct sockaddr_in from = { .sin_family = AF_INET }, to = from;
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	struct raw_shake shake;
	unsigned int open = 0;
	struct victim v;
	int first;

	(void)state;
	victim_open(&v, 5000);
	/* From an address of its own, the oldest of all. */
	inet_pton(AF_INET, "127.0.0.2", &from.sin_addr);
	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	to.sin_port = htons((uint16_t)atoi(strrchr(v.f.child->url, ':') + 1));
	first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	want(0, bind(first, (struct sockaddr *)&from, sizeof(from)));
	want(0, connect(first, (struct sockaddr *)&to, sizeof(to)));
	for (int i = 0; i < STRANGERS; i++)
		fds[i] = connect_to(&v);
	sleep_ms(SCALE(100, 500));
	for (int i = 0; i < STRANGERS; i++) {
		struct pollfd look = { fds[i], POLLIN, 0 };

		open += poll(&look, 1, 0) == 0;
		close(fds[i]);
	}
	want(256, open);
	want(0, raw_shake(first, &hello, NULL, &shake));
	want(0, raw_prove(first, shake.proofs.initiator));
	want(4, raw_skip_regions(first));
	close(first);
	victim_close(&v);
}

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
	want_true(strstr(text, "does not prove the key") && strstr(text, "wherry.key"), "%s", text);
	want(0, wh_peer_open(engine, keyed->url, NULL, &peer));
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
	child_exit(plain);
	child_exit(keyed);
}

/* Another user of the host, over loopback, in both directions. */
static void engines__other_user(void **state)
{
	struct child_options options = { .user = NOBODY };
	struct child *nobody = child_start(&options), *root = child_start(NULL);
	char text[256];

	(void)state;
	want(-EACCES, child_peer(nobody, root->url, text));
	want_true(strstr(text, "does not prove the key") || strstr(text, "user 65534"), "%s", text);
	want(-EACCES, child_peer(root, nobody->url, text));
	want_true(strstr(text, "does not prove the key"), "%s", text);
	child_exit(nobody);
	child_exit(root);
}

/* More than loopback takes a key that is configured, to listen on and to connect to. */
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

/* Connecting and proving, both sides, over loopback: the best of many, and of more where others use
 * the machine, too. */
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

/* ---- to the initiator -------------------------------------------------- */

/* Who answers one connection in place of an owner. */
struct stranger {
	pthread_t thread;
	int listener;
	char url[64];
	const char *relay; /* hand the HELLO on to this engine, and its answer back */
	const uint8_t *key; /* answer with this one; NULL: with no proof, but a list of regions */
	bool silent;
	bool got_proof; /* the initiator has said more than HELLO */
};

static void *stranger(void *arg)
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
		/* Straight to the list: an owner that proves nothing. */
		raw_send_frame(fd, WH_FRAME_REGIONS, WH_FRAME_LAST, answer,
			       wh_region_encode(answer, &record));
	}
	length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));
	me->got_proof = length >= 0;
	if (far >= 0 && length >= 0) {
		raw_send_frame(far, frame.type, 0, bytes, (size_t)length);
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
	raw_key(); /* here, rather than on the thread */
	me->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(me->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	want(0, bind(me->listener, (struct sockaddr *)&address, sizeof(address)));
	want(0, listen(me->listener, 64));
	want(0, getsockname(me->listener, (struct sockaddr *)&address, &length));
	snprintf(me->url, sizeof(me->url), "wherry://127.0.0.1:%d", ntohs(address.sin_port));
	want(0, pthread_create(&me->thread, NULL, stranger, me));
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

/* What an engine says to a stranger, the stranger says to that engine, and hands the answer back:
 * the engine must not take him for itself. */
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

/* One who takes the port of an engine that has ended: the peer stays lost, and is told nothing. */
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

/* ---- a relay: another user, who has no key, between two engines that have ---- */

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

/* What comes from the one goes to the other, until one of them closes. */
static void pump(int one, int other)
{
	struct pollfd fds[] = { { one, POLLIN, 0 }, { other, POLLIN, 0 } };
	char bytes[4096];
	ssize_t got;

	while (poll(fds, 2, 10000) > 0)
		for (int i = 0; i < 2; i++) {
			if (!fds[i].revents)
				continue;
			got = recv(fds[i].fd, bytes, sizeof(bytes), 0);
			if (got <= 0 || raw_send(fds[!i].fd, bytes, (size_t)got))
				return;
		}
}

/* As another user, before one connection: a relay to `url`, or, with the right key, an owner. */
static pid_t another_user(const char *url, char out[64])
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
			stranger(&me);
			_exit(me.got_proof);
		}
		one = accept4(me.listener, NULL, NULL, SOCK_CLOEXEC);
		other = raw_connect(url);
		pump(one, other);
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
	/* The owner refuses him. */
	pid = another_user(child->url, url);
	want_text(-EACCES, "user 65534", wh_peer_open(engine, url, NULL, &peer));
	want(pid, waitpid(pid, &status, 0));
	want(0, status);
	/* The initiator does, even with the right proof, and proves nothing to him. */
	pid = another_user(NULL, url);
	want_text(-EACCES, "user 65534", wh_peer_open(engine, url, NULL, &peer));
	want(pid, waitpid(pid, &status, 0));
	want(0, status);
	want(0, wh_engine_close(engine));
	child_exit(child);
}

static const struct CMUnitTest tests[] = {
	TEST(owner__other_key),
	TEST(owner__wrong_proofs),
	TEST(owner__replayed),
	TEST(owner__changed_on_the_way),
	TEST(owner__downgrade),
	TEST(owner__no_proof),
	TEST(owner__slow_proof),
	TEST(owner__key_of_another_session),
	TEST(owner__many_from_one_place),
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

HARNESS_MAIN("hostile-trust", tests)
