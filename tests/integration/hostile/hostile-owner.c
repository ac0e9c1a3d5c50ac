/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads waits hostile */
/* hostile-owner.c: an engine connects to an impostor that answers wrongly
 *
 * The engine must give up with an errno that says so, and change nothing outside of what it asked
 * for. */
#include "lib/fixture.h"
#include "lib/impostor.h"

#define REGION IMPOSTOR_REGION
#define LENGTH IMPOSTOR_LENGTH

/* ---- handshakes -------------------------------------------------------- */

/* Open the impostor as a peer, within a time limit; `text` receives the error. */
static int impostor_open_peer(struct impostor *me, char text[256])
{
	struct wh_engine *engine = engine_open(NULL, "none", NULL);
	struct wh_peer_options options = { .size = sizeof(options),
					   .timeout = SCALE(500, 3000) * MS };
	struct wh_peer *peer;
	int64_t before = quiet_now();
	int error;

	impostor_start(me);
	error = wh_peer_open(engine, me->url, &options, &peer);
	want_true(quiet_now() - before < SCALE(3, 20) * SECOND, "it took %lld ms",
		  (long long)((quiet_now() - before) / MS));
	snprintf(text, 256, "%s", wh_error_text());
	if (!error)
		want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
	impostor_stop(me);
	return error;
}

static void want_open(int error, struct impostor me)
{
	char text[256];
	int got = impostor_open_peer(&me, text);

	want_true(got == error, "it is %s, wanted %s: %s", got ? strerrorname_np(-got) : "0",
		  error ? strerrorname_np(-error) : "0", text);
	want_true(!error || text[0], "there is no text");
}

static void handshake__not_wherry(void **state)
{
	static const char http[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
	static const char ssh[] = "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2\r\n";
	unsigned char garbage[300];

	(void)state;
	pattern_fill(garbage, sizeof(garbage), 0, 1);
	want_open(-EPROTO, (struct impostor){ .greeting = http, .greeting_length = sizeof(http) });
	want_open(-EPROTO, (struct impostor){ .greeting = ssh, .greeting_length = sizeof(ssh) });
	want_open(-EPROTO, (struct impostor){ .greeting = garbage, .greeting_length = 300 });
	want_open(-EPROTO, (struct impostor){ .greeting = http,
					      .greeting_length = sizeof(http),
					      .hangs_up = true });
}

static void handshake__silence(void **state)
{
	(void)state;
	want_open(-ETIMEDOUT, (struct impostor){ .greeting = "", .greeting_length = 0 });
	/* A part of a frame. */
	want_open(-ETIMEDOUT, (struct impostor){ .greeting = "\100\0\0", .greeting_length = 3 });
	/* A WELCOME without a region list. */
	want_open(-ETIMEDOUT, (struct impostor){ .list = "", .list_length = 0 });
}

/* -ECONNRESET would say that the engine tries again. */
static void handshake__hangs_up(void **state)
{
	struct wh_peer_options options = { .size = sizeof(options) };
	struct impostor me = { .greeting = "", .hangs_up = true };
	struct wh_engine *engine = engine_open("tcp", "none", NULL);
	struct wh_peer_info info = { .size = sizeof(info) };
	struct wh_completion done;
	struct wh_peer *peer;

	(void)state;
	want_open(-ECONNABORTED, me);
	want(0, wh_queue_new(engine, &options.queue));
	impostor_start(&me);
	want(0, wh_peer_open(engine, me.url, &options, &peer));
	want(1, wh_queue_take(options.queue, &done, 1, PATIENCE));
	want(-ECONNABORTED, done.status);
	want(-ECONNABORTED, wh_peer_status(peer));
	want_true(strstr(wh_error_text(), "during the handshake"), "it says: %s", wh_error_text());
	want(0, wh_peer_info(peer, &info));
	want(WH_PEER_UNREACHABLE, info.state);
	want(0, wh_peer_close(peer));
	want(0, wh_queue_free(options.queue));
	want(0, wh_engine_close(engine));
	impostor_stop(&me);
}

static void handshake__refused(void **state)
{
	struct impostor me = { .refusal = EPROTONOSUPPORT };
	char text[256];

	(void)state;
	want(-EPROTONOSUPPORT, impostor_open_peer(&me, text));
	want_true(strstr(text, "because of the test"), "it says: %s", text);
	me = (struct impostor){ .refusal = EACCES };
	want(-EACCES, impostor_open_peer(&me, text));
	/* An invalid errno. */
	me = (struct impostor){ .refusal = 0x7fffffff };
	want_true(impostor_open_peer(&me, text) < 0,
		  "refused with nonsense, and taken as a welcome");
}

static size_t welcome_bytes(uint8_t *out, uint16_t version, uint16_t role, uint64_t epoch)
{
	struct wh_hello welcome = raw_hello(role);
	struct wh_frame frame = { .type = WH_FRAME_WELCOME };

	welcome.version_min = welcome.version_max = version;
	welcome.epoch = epoch;
	frame.length = (uint32_t)wh_hello_encode(out + WH_FRAME_HEADER, &welcome);
	wh_frame_encode(out, &frame);
	return WH_FRAME_HEADER + frame.length;
}

static void handshake__welcome_is_wrong(void **state)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX];
	size_t length = welcome_bytes(bytes, WH_WIRE_VERSION + 1, WH_ROLE_CONTROL, 5);
	struct impostor newer = { .greeting = bytes, .greeting_length = length };
	char text[256];

	(void)state;
	want(-EPROTONOSUPPORT, impostor_open_peer(&newer, text));
	want_true(strstr(text, "answers in protocol version"), "it says: %s", text);
	length = welcome_bytes(bytes, WH_WIRE_VERSION, WH_ROLE_CONTROL, 5);
	bytes[WH_FRAME_HEADER] ^= 1; /* the magic */
	want_open(-EPROTO, (struct impostor){ .greeting = bytes, .greeting_length = length });
	length = welcome_bytes(bytes, WH_WIRE_VERSION, WH_ROLE_CONTROL, 5);
	for (size_t cut = 1; cut < length; cut += SCALE(7, 40)) {
		struct impostor me = { .greeting = bytes,
				       .greeting_length = cut,
				       .hangs_up = true };

		want_true(impostor_open_peer(&me, text) < 0, "a WELCOME cut off at %zu", cut);
	}
}

/* In front of the first record of a REGIONS frame. */
#define FRONT (WH_FRAME_HEADER + WH_REGIONS_HEAD)

static void handshake__regions_are_wrong(void **state)
{
	struct wh_region_record record = { .id = REGION,
					   .address = 4096,
					   .length = 10,
					   .access = WH_ACCESS_READ,
					   .kind = WH_MEMORY_PAGEABLE,
					   .name = "name" };
	uint8_t bytes[FRONT + WH_REGION_RECORD_MAX] = { 0 };
	size_t length = WH_REGIONS_HEAD + wh_region_encode(bytes + FRONT, &record);
	struct wh_frame frame = { (uint32_t)length, WH_FRAME_REGIONS, WH_FRAME_LAST };
	struct impostor me = { .list = bytes, .list_length = WH_FRAME_HEADER + length };

	(void)state;
	wh_frame_encode(bytes, &frame);
	want_open(0, me);
	bytes[FRONT + 24] = 0x55; /* access */
	want_open(-EPROTO, me);
	wh_region_encode(bytes + FRONT, &record);
	memset(bytes + FRONT + 16, 0, 8); /* length */
	want_open(-EPROTO, me);
	memset(bytes + FRONT + 8, 0xff, 16); /* address and length */
	want_open(-EPROTO, me);
	wh_region_encode(bytes + FRONT, &record);
	bytes[FRONT + 28] = '/'; /* name */
	want_open(-EPROTO, me);
	wh_region_encode(bytes + FRONT, &record);
	frame.length--;
	wh_frame_encode(bytes, &frame);
	want_open(-EPROTO, me);
	frame.length = WH_FRAME_MAX + 1;
	wh_frame_encode(bytes, &frame);
	want_open(-EPROTO, me);
	memset(bytes, 0xff, sizeof(bytes));
	want_open(-EPROTO, me);
}

/* The impostor sends the epoch that it has just received, and so claims to be the connecting
 * engine. It must not be taken for that: bytes meant for it would go to our own regions. */
static void handshake__claims_to_be_us(void **state)
{
	struct impostor me = { .echoes_epoch = true };
	struct wh_region_options options = { .size = sizeof(options),
					     .name = "ours",
					     .access = ACCESS_BOTH };
	struct wh_engine *engine = engine_open(NULL, NULL, NULL);
	struct wh_peer_options patience = { .size = sizeof(patience), .timeout = SECOND };
	struct wh_region *region;
	struct wh_remote remote;
	struct wh_peer *peer;
	static char memory[64];

	(void)state;
	want(0, wh_region_register(engine, memory, sizeof(memory), &options, &region));
	impostor_start(&me);
	if (wh_peer_open(engine, me.url, &patience, &peer) == 0) {
		want(-ENOENT, wh_peer_find(peer, "ours", WH_ANSWER, &remote));
		want(0, wh_peer_close(peer));
	}
	want(0, wh_region_unregister(region));
	want(0, wh_engine_close(engine));
	impostor_stop(&me);
}

/* Our own address does connect to ourselves. */
static void handshake__is_us(void **state)
{
	struct wh_engine *engine = engine_open(NULL, NULL, NULL);
	struct wh_peer_info info = { .size = sizeof(info) };
	struct wh_peer *peer;

	(void)state;
	want(0, wh_peer_open(engine, wh_engine_url(engine), NULL, &peer));
	want(0, wh_peer_info(peer, &info));
	want(wh_engine_epoch(engine), info.epoch);
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
}

/* ---- responses --------------------------------------------------------- */

/* One batch against an owner that answers in this way. Our memory around the target must not
 * change, and completed bytes must be those sent. */
static void try_answer(enum answer kind, uint32_t op)
{
	static const char *const config[] = { SCALE("timeout=500", "timeout=3000"), "connections=2",
					      NULL };
	struct impostor me = { .answer = kind };
	struct fixture f = { .route = &route_tcp4, .length = LENGTH };
	struct wh_transfer transfer;
	uint64_t moved = 77;
	struct wh_batch *batch;
	int status;

	impostor_start(&me);
	f.engine = engine_open("tcp", "none", config);
	f.base = pages_new(3 * LENGTH);
	f.local = f.base + LENGTH;
	want(0, wh_region_register(f.engine, f.base, 3 * LENGTH, NULL, &f.region));
	fixture_connect(&f, me.url);
	want(REGION, f.remote.id);
	pattern_fill(f.base, 3 * LENGTH, 0, 1);
	transfer = transfer_of(&f, op, LENGTH, 100, 5000);
	batch = batch_of(&f, &transfer, 1);
	want(-EINVAL, wh_batch_progress(batch, &moved));
	want(0, wh_batch_submit(batch));
	status = batch_end(batch, kind == ANSWER_NEVER ? 300 * MS : PATIENCE);
	want_true((status == -EAGAIN) == (kind == ANSWER_NEVER), "answer %d: %d", kind, status);
	want(0, wh_batch_progress(batch, &moved));
	want_true(moved == (kind == ANSWER_NEVER ? 0 : 5000), "answer %d: %llu bytes", kind,
		  (unsigned long long)moved);
	want(0, wh_batch_cancel(batch));
	want_true(pattern_check(f.base, LENGTH, 0, 1) == PATTERN_GOOD &&
			  pattern_check(f.local + 5000, 2 * LENGTH - 5000, LENGTH + 5000, 1) ==
				  PATTERN_GOOD,
		  "answer %d: memory around the target has changed", kind);
	want_true(op == WH_READ || pattern_check(f.local, 5000, LENGTH, 1) == PATTERN_GOOD,
		  "answer %d: a write changed its source", kind);
	if (kind == ANSWER_WELL)
		want(0, status);
	if (op == WH_READ && status == 0)
		for (size_t i = 0; i < 5000; i++)
			want_true(f.local[i] == IMPOSTOR_BYTE, "answer %d: said to be done, is not",
				  kind);
	if (op == WH_READ && kind != ANSWER_WELL && kind != ANSWER_TWICE)
		want_true(status < 0, "answer %d was taken", kind);
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(f.peer));
	want(0, wh_region_unregister(f.region));
	want(0, wh_engine_close(f.engine));
	pages_free(f.base, 3 * LENGTH);
	impostor_stop(&me);
}

static void response__to_reads(void **state)
{
	(void)state;
	for (enum answer kind = ANSWER_WELL; kind < ANSWER_END; kind++)
		try_answer(kind, WH_READ);
}

static void response__to_writes(void **state)
{
	(void)state;
	for (enum answer kind = ANSWER_WELL; kind < ANSWER_END; kind++)
		try_answer(kind, WH_WRITE);
}

static const struct CMUnitTest tests[] = {
	TEST(handshake__not_wherry),       TEST(handshake__silence),
	TEST(handshake__hangs_up),         TEST(handshake__refused),
	TEST(handshake__welcome_is_wrong), TEST(handshake__regions_are_wrong),
	TEST(handshake__claims_to_be_us),  TEST(handshake__is_us),
	TEST(response__to_reads),          TEST(response__to_writes),
};

HARNESS_MAIN("hostile-owner", tests)
