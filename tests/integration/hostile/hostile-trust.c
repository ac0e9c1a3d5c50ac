/* SPDX-License-Identifier: Apache-2.0 */
/* hostile-trust.c: a client that lacks the key, or knows only recorded bytes of a client that has
 * it, gets nothing, over loopback and as another user, too. An engine gives nothing to such an
 * owner either. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "lib/victim.h"
#include "platform/owner.h"
#include "wire/bytes.h"

#define TIMEOUT 500 /* ms; the victim's */
#define SOON SCALE(5000, 20000)
#define NOBODY 65534

static const uint8_t other_key[WH_KEY_SIZE] = { 1, 2, 3 };

static int connect_to(const struct victim *v)
{
	int fd = raw_connect(v->f.child->url);

	want_true(fd >= 0, "it takes no connection: %s", strerror(errno));
	return fd;
}

/* The victim must answer with a refusal with this errno and close; it must never send a region
 * list. */
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

/* ---- an owner and bad initiators --------------------------------------- */

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

/* Proofs with any one bit wrong, the owner's own proof sent back, and no proof. */
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

/* Everything that a valid initiator has sent, replayed: the owner's nonce differs. */
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

/* Changed in transit: the owner receives another HELLO than the initiator sent. */
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
		case 3: /* as if the other side supported other versions */
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

/* A HELLO of the version without proofs, and HELLOs whose proof fields are too short or too
 * long. */
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

/* In place of PROVE: nothing, all frames of a session, a part, another frame, too many bytes. */
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
			/* The owner may close the connection before the payload. */
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
		want(0, send_all(fd, bytes, cut));
		shutdown(fd, SHUT_WR);
		want_true(raw_closes(fd, SOON), "cut at %zu: still open", cut);
		close(fd);
	}
	/* Bytes sent together with a valid proof are not lost. */
	fd = connect_to(&v);
	want(0, raw_shake(fd, &hello, NULL, &shake));
	memcpy(bytes + WH_FRAME_HEADER, shake.proofs.initiator, WH_PROOF_SIZE);
	wh_frame_encode(bytes + WH_PROVE_SIZE, &(struct wh_frame){ 8, WH_FRAME_PING, 0 });
	want(0, send_all(fd, bytes, WH_PROVE_SIZE + WH_FRAME_HEADER + 8));
	want(4, raw_skip_regions(fd));
	{
		struct wh_frame frame;

		want(8, raw_receive_frame(fd, &frame, bytes, 8));
		want(WH_FRAME_PONG, frame.type);
	}
	close(fd);
	victim_close(&v);
}

/* After a HELLO, a slow client has no more time than a silent one. */
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
		send_all(fds[1], "", 1);
		closed = raw_closes(fds[1], TIMEOUT / 4 * SCALE(1, 4));
	}
	want_true(closed, "a proof may take for ever");
	close(fds[0]);
	close(fds[1]);
	victim_close(&v);
}

/* A session's key opens only that session, also for clients with the cluster key. */
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
	/* With its own key it is accepted. */
	fd = raw_data(v.f.child->url, &v.welcome);
	want_true(fd >= 0, "its own is refused");
	close(fd);
	close(second);
	victim_close(&v);
}

/* Very many silent strangers at one address do not delay clients at another. */
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
	/* The oldest connection of all, from another address. */
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
		/* An owner that proves nothing: the region list at once. */
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
	raw_key(); /* before the thread starts */
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
			if (got <= 0 || send_all(fds[!i].fd, bytes, (size_t)got))
				return;
		}
}

/* As another user, before the first connection: relay to `url`, or be an owner with the right
 * key. */
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
	/* The owner refuses that user. */
	pid = another_user(child->url, url);
	want_text(-EACCES, "user 65534", wh_peer_open(engine, url, NULL, &peer));
	want(pid, waitpid(pid, &status, 0));
	want(0, status);
	/* The initiator refuses that user, even with the right proof, and sends no proof. */
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
