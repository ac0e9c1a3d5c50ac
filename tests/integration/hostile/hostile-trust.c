/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: waits hostile */
/* hostile-trust.c: initiators that an owner must not trust
 *
 * A client that lacks the key, or knows only recorded bytes of a client that has it, gets nothing.
 * Owners that an initiator must not trust are in hostile-trust-owner.c. */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include "lib/victim.h"
#include "wire/bytes.h"

#define TIMEOUT 1000 /* ms; the victim's */
#define SOON 60000 /* ms; ends a test that hangs */

static const uint8_t other_key[WH_KEY_SIZE] = { 1, 2, 3 };

static int victim_connect(const struct victim *v)
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
	int got, length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	want_true(length > 0, "no answer");
	want(WH_FRAME_REFUSED, frame.type);
	want(0, wh_refusal_decode(bytes, (size_t)length, &got, text));
	want(error, got);
	want_true(raw_closes(fd, SOON), "it is still open");
	close(fd);
}

static void owner__other_key(void **state)
{
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	struct raw_shake shake;
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (int i = 0; i < 10; i++) {
		int fd = victim_connect(&v);

		want(0, raw_shake(fd, &hello, other_key, &shake));
		want_true(memcmp(shake.proofs.owner, shake.decoded.auth + WH_NONCE_SIZE,
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
		int fd = victim_connect(&v);

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
		int fd = victim_connect(&v), again = victim_connect(&v);

		want(0, raw_shake(fd, &hello, NULL, &first));
		want(0, raw_prove(fd, first.proofs.initiator));
		want(0, raw_shake(again, &hello, NULL, &second));
		want_true(memcmp(first.decoded.auth, second.decoded.auth, WH_NONCE_SIZE) != 0,
			  "the owner's nonce recurs");
		want(0, raw_prove(again, first.proofs.initiator));
		want_refusal(again, EACCES);
		if (!i)
			want(4, raw_count_regions(fd));
		close(fd);
	}
	victim_close(&v);
}

/* Changed in transit: the owner receives another HELLO than the initiator sent. */
static void owner__changed_on_the_way(void **state)
{
	struct wh_hello sent = raw_hello(WH_ROLE_CONTROL), received;
	struct raw_shake shake;
	struct victim v;

	(void)state;
	victim_open(&v, TIMEOUT);
	for (int i = 0; i < 6; i++) {
		uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX];
		struct wh_proofs proofs;
		size_t length;
		int fd = victim_connect(&v);

		received = sent;
		switch (i) {
		case 0:
			received.capabilities = 1;
			break;
		case 1:
			received.epoch++;
			break;
		case 2:
			strcpy(received.name, "another");
			break;
		case 3: /* as if the other side supported other versions */
			received.version_min = 0;
			break;
		case 4:
			received.version_max++;
			break;
		default:
			received.host[3]++;
		}
		want(0, raw_shake(fd, &received, NULL, &shake));
		length = raw_hello_bytes(bytes, &sent);
		want(0, wh_proofs_make(raw_crypto(), raw_key(), bytes + WH_FRAME_HEADER,
				       length - WH_FRAME_HEADER, shake.welcome,
				       shake.welcome_length, &proofs));
		want_true(memcmp(proofs.owner, shake.decoded.auth + WH_NONCE_SIZE, WH_PROOF_SIZE) !=
				  0,
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
	fd = victim_connect(&v);
	want(EPROTONOSUPPORT, raw_greet(fd, &hello, &welcome));
	close(fd);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		hello = raw_hello(WH_ROLE_CONTROL);
		hello.auth_length = lengths[i];
		fd = victim_connect(&v);
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
			fd = victim_connect(&v);
			want(0, raw_shake(fd, &hello, NULL, &shake));
			/* The owner may close the connection before the payload. */
			raw_send_frame(fd, type, 0, bytes, length);
			want_true(raw_closes(fd, SOON), "type %u, %zu bytes: still open", type,
				  length);
			close(fd);
		}
	for (size_t cut = 0; cut < WH_PROVE_SIZE; cut += SCALE(1, 7)) {
		fd = victim_connect(&v);
		want(0, raw_shake(fd, &hello, NULL, &shake));
		wh_frame_encode(bytes, &(struct wh_frame){ WH_PROOF_SIZE, WH_FRAME_PROVE, 0 });
		memcpy(bytes + WH_FRAME_HEADER, shake.proofs.initiator, WH_PROOF_SIZE);
		want(0, send_all(fd, bytes, cut));
		shutdown(fd, SHUT_WR);
		want_true(raw_closes(fd, SOON), "cut at %zu: still open", cut);
		close(fd);
	}
	/* Bytes sent together with a valid proof are not lost. */
	fd = victim_connect(&v);
	want(0, raw_shake(fd, &hello, NULL, &shake));
	memcpy(bytes + WH_FRAME_HEADER, shake.proofs.initiator, WH_PROOF_SIZE);
	wh_frame_encode(bytes + WH_PROVE_SIZE, &(struct wh_frame){ 8, WH_FRAME_PING, 0 });
	want(0, send_all(fd, bytes, WH_PROVE_SIZE + WH_FRAME_HEADER + 8));
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
		fds[i] = victim_connect(&v);
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
	want(4, raw_count_regions(second));
	/* The first session's number, with the cluster key. */
	hello = raw_hello_of(WH_ROLE_DATA, &v.welcome);
	fd = victim_connect(&v);
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
	int64_t end = now() + PATIENCE;
	unsigned int open;
	struct victim v;
	int first;

	(void)state;
	victim_open(&v, 30000); /* long: no stranger is closed for its silence */
	/* The oldest connection of all, from another address. */
	inet_pton(AF_INET, "127.0.0.2", &from.sin_addr);
	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	to.sin_port = htons((uint16_t)atoi(strrchr(v.f.child->url, ':') + 1));
	first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	want(0, bind(first, (struct sockaddr *)&from, sizeof(from)));
	want(0, connect(first, (struct sockaddr *)&to, sizeof(to)));
	for (int i = 0; i < STRANGERS; i++)
		fds[i] = victim_connect(&v);
	do {
		sleep_ms(10);
		open = 0;
		for (int i = 0; i < STRANGERS; i++)
			open += poll(&(struct pollfd){ fds[i], POLLIN, 0 }, 1, 0) == 0;
	} while (open > 256 && now() < end);
	want(256, open);
	for (int i = 0; i < STRANGERS; i++)
		close(fds[i]);
	want(0, raw_shake(first, &hello, NULL, &shake));
	want(0, raw_prove(first, shake.proofs.initiator));
	want(4, raw_count_regions(first));
	close(first);
	victim_close(&v);
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
};

HARNESS_MAIN("hostile-trust", tests)
