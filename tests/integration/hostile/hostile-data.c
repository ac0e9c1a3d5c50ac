/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads-target waits hostile */
/* hostile-data.c: requests of a hostile peer after a valid handshake: bytes outside of published
 * regions are neither read nor written, and other peers are served */
#include <sys/socket.h>

#include "lib/victim.h"
#include "wire/bytes.h"

#define TIMEOUT 1000 /* ms; the victim's */
#define SOON 60000 /* ms; ends a test that hangs */
#define SIZE VICTIM_REGION

static unsigned char buffer[1 << 20];
static struct raw_error errors[WH_REQUEST_EXTENTS];

static void open_data(struct victim *v)
{
	victim_open(v, TIMEOUT);
	victim_greet_data(v);
}

/* The data connection still works: a read of the whole region returns all of it. */
static void want_answers(struct victim *v)
{
	struct wh_extent whole = { .region = v->ro, .length = SIZE };
	struct wh_response response;

	want(0, raw_request(v->data, WH_READ, 4711, &whole, 1, NULL, 0));
	want(0, raw_response(v->data, &response, errors, 0, buffer, SIZE));
	want(4711, response.id);
	want(SIZE, response.bytes);
	want_true(pattern_check(buffer, SIZE, victim_offset(v, v->ro), 1) == PATTERN_GOOD, "bytes");
}

/* ---- refused by the owner ---------------------------------------------- */

struct wrong {
	uint8_t op;
	uint64_t region, offset, length;
	int32_t error; /* expected errno; 0: any */
};

static void want_refused(struct victim *v, const struct wrong *wrong)
{
	struct wh_extent extent = { wrong->region, wrong->offset, wrong->length };
	bool writes = wrong->op == WH_WRITE;
	struct wh_response response;

	want(0,
	     raw_request(v->data, wrong->op, 7, &extent, 1, writes ? buffer : NULL, wrong->length));
	want(0, raw_response(v->data, &response, errors, 1, buffer, sizeof(buffer)));
	want(7, response.id);
	want(wrong->op, response.op);
	want(0, response.bytes);
	want(1, response.errors);
	want(0, errors[0].extent);
	want_true(wrong->error ? errors[0].error == wrong->error : errors[0].error > 0,
		  "%s of region %llu, %#llx and %llu bytes: %s", writes ? "write" : "read",
		  (unsigned long long)wrong->region, (unsigned long long)wrong->offset,
		  (unsigned long long)wrong->length, strerror(errors[0].error));
}

static void range__outside(void **state)
{
	static const uint64_t offsets[][2] = {
		{ SIZE, 1 },
		{ SIZE - 1, 2 },
		{ 0, SIZE + 1 },
		{ 1, SIZE },
		{ SIZE + 1, 1 },
		{ 0, sizeof(buffer) },
		{ UINT32_MAX, 1 },
		{ UINT64_C(1) << 32, 1 },
		{ (UINT64_C(1) << 63) - 1, 1 },
		{ UINT64_C(1) << 63, 1 },
		{ UINT64_MAX - 1, 1 },
		{ UINT64_MAX - SIZE, SIZE },
		{ UINT64_MAX - 4 * SIZE, SIZE },
	};
	struct victim v;

	(void)state;
	open_data(&v);
	memset(buffer, 0xee, sizeof(buffer));
	for (uint8_t op = WH_READ; op <= WH_WRITE; op++)
		for (size_t i = 0; i < sizeof(offsets) / sizeof(*offsets); i++) {
			struct wrong wrong = { op, v.rw, offsets[i][0], offsets[i][1], ERANGE };

			want_refused(&v, &wrong);
		}
	/* Offsets that would reach the region's surroundings by wrapping around. */
	for (int64_t to = -2 * SIZE; to < 0; to += 1000) {
		struct wrong wrong = { WH_WRITE, v.rw, (uint64_t)to, 100, ERANGE };

		if ((uint64_t)to <= UINT64_MAX - 100)
			want_refused(&v, &wrong);
	}
	want_answers(&v);
	victim_close(&v);
}

static void region__unknown(void **state)
{
	struct victim v;

	(void)state;
	open_data(&v);
	for (uint8_t op = WH_READ; op <= WH_WRITE; op++) {
		const uint64_t ids[] = { 0,
					 v.none,
					 v.dead,
					 v.dead + 1,
					 v.dead + 100000,
					 UINT64_C(1) << 32,
					 UINT64_C(1) << 63,
					 UINT64_MAX };

		for (size_t i = 0; i < sizeof(ids) / sizeof(*ids); i++) {
			struct wrong wrong = { op, ids[i], 0, 16, 0 };

			want_refused(&v, &wrong);
		}
	}
	want_answers(&v);
	victim_close(&v);
}

static void region__rights(void **state)
{
	struct victim v;

	(void)state;
	open_data(&v);
	want_refused(&v, &(struct wrong){ WH_WRITE, v.ro, 0, 16, EACCES });
	want_refused(&v, &(struct wrong){ WH_WRITE, v.ro, 0, SIZE, EACCES });
	want_refused(&v, &(struct wrong){ WH_READ, v.wo, 0, 16, EACCES });
	want_refused(&v, &(struct wrong){ WH_READ, v.wo, SIZE, 16, 0 });
	want_answers(&v);
	victim_close(&v);
}

/* A list with every second extent invalid: the others are served, in order. */
static void list__good_and_wrong(void **state)
{
	enum { COUNT = 9, EACH = 100 };
	struct wh_extent extents[COUNT];
	struct wh_response response;
	struct victim v;
	uint64_t at;

	(void)state;
	open_data(&v);
	for (uint64_t i = 0; i < COUNT; i++) {
		extents[i] = (struct wh_extent){ v.rw, 3 * i, EACH };
		if (i % 2)
			extents[i].offset += SIZE;
	}
	want(0, raw_request(v.data, WH_READ, 1, extents, COUNT, NULL, 0));
	want(0, raw_response(v.data, &response, errors, COUNT, buffer, sizeof(buffer)));
	want(COUNT / 2, response.errors);
	want((COUNT - COUNT / 2) * EACH, response.bytes);
	at = victim_offset(&v, v.rw);
	for (uint64_t i = 0; i < COUNT; i += 2)
		want_true(pattern_check(buffer + i / 2 * EACH, EACH, at + 3 * i, 1) == PATTERN_GOOD,
			  "extent %d", (int)i);
	for (uint32_t i = 0; i < COUNT / 2; i++) {
		want(2 * i + 1, errors[i].extent);
		want(ERANGE, errors[i].error);
	}
	/* Write the same bytes back: nothing changes, and the payload of invalid extents is
	 * skipped. */
	for (uint64_t i = COUNT - 1; i < COUNT; i--) {
		if (i % 2)
			memset(buffer + i * EACH, 0xee, EACH);
		else
			memmove(buffer + i * EACH, buffer + i / 2 * EACH, EACH);
	}
	want(0, raw_request(v.data, WH_WRITE, 2, extents, COUNT, buffer, COUNT * EACH));
	want(0, raw_response(v.data, &response, errors, COUNT, buffer, sizeof(buffer)));
	want(COUNT / 2, response.errors);
	want(0, response.bytes);
	want_answers(&v);
	victim_close(&v);
}

/* ---- malformed requests ------------------------------------------------ */

/* Send bytes as a request on a new connection: it must be closed, and the victim must be well. */
static void want_cut_off(struct victim *v, const void *bytes, size_t length, const char *what)
{
	victim_greet_data(v);
	send_all(v->data, bytes, length);
	want_true(raw_closes(v->data, SOON), "%s: still open", what);
}

static size_t request_bytes(uint8_t *out, const struct wh_request *request, const void *meta,
			    size_t length)
{
	wh_request_encode(out, request);
	memcpy(out + WH_REQUEST_SIZE, meta, length);
	return WH_REQUEST_SIZE + length;
}

static void malformed__header(void **state)
{
	const struct wh_request good = {
		.op = WH_READ, .meta = 4, .count = 1, .id = 1, .bytes = 16
	};
	uint8_t bytes[WH_REQUEST_SIZE + 8] = { 0 };
	struct wh_request request;
	struct victim v;

	(void)state;
	open_data(&v);
#define TRY(change)                                                                                \
	do {                                                                                       \
		request = good;                                                                    \
		request.change;                                                                    \
		request_bytes(bytes, &request, "\2\4\0\20", 4);                                    \
		want_cut_off(&v, bytes, sizeof(bytes), #change);                                   \
	} while (0)
	TRY(op = 0);
	TRY(op = 3);
	TRY(op = 255);
	TRY(meta = 0);
	TRY(meta = WH_REQUEST_META + 1);
	TRY(meta = UINT32_MAX);
	TRY(count = 0);
	TRY(count = WH_REQUEST_EXTENTS + 1);
	TRY(count = UINT32_MAX);
	TRY(bytes = 0);
	TRY(bytes = WH_REQUEST_BYTES + 1);
	TRY(bytes = UINT64_MAX);
#undef TRY
	for (size_t i = 1; i < 4; i++) {
		request_bytes(bytes, &good, "\2\4\0\20", 4);
		bytes[i] = 1; /* reserved */
		want_cut_off(&v, bytes, sizeof(bytes), "reserved bytes");
	}
	pattern_fill(buffer, sizeof(buffer), 0, 3);
	want_cut_off(&v, buffer, 4096, "garbage");
	victim_close(&v);
}

/* The extents do not match the header, or are garbage. */
static void malformed__extents(void **state)
{
	static const struct {
		const char *what, *meta;
		uint32_t length, count;
		uint64_t bytes;
	} cases[] = {
		{ "no token at the start but a delta", "\0\0\0\0", 4, 4, 64 },
		{ "a repeat at the start", "\xfd\x01", 2, 127, 127 },
		{ "more extents than said", "\2\4\0\1\5", 5, 1, 1 },
		{ "fewer extents than said", "\2\4\0\1", 4, 2, 2 },
		{ "fewer bytes than said", "\2\4\0\1", 4, 1, 100 },
		{ "more bytes than said", "\2\4\0\x10", 4, 1, 1 },
		{ "a length of zero", "\2\4\0\0", 4, 1, 1 },
		{ "cut off in a number", "\2\4\x80", 3, 1, 1 },
		{ "a number that never ends",
		  "\2\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\1\1\1", 17, 1, 1 },
		{ "a repeat of very many", "\2\4\0\1\xfd\xff\xff\xff\xff\xff\xff\xff\x7f", 13, 1000,
		  1000 },
		{ "a repeat of none", "\2\4\0\1\1", 5, 2, 2 },
		{ "a token of no kind", "\3\4\0\1", 4, 1, 1 },
		{ "an offset and length that wrap", "\2\4\xff\xff\xff\xff\xff\xff\xff\xff\xff\1\2",
		  13, 1, 2 },
		{ "a length of all bits", "\2\4\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\1", 13, 1,
		  1 },
	};
	uint8_t bytes[WH_REQUEST_SIZE + 64];
	struct victim v;

	(void)state;
	open_data(&v);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		for (uint8_t op = WH_READ; op <= WH_WRITE; op++) {
			struct wh_request request = { .op = op,
						      .meta = cases[i].length,
						      .count = cases[i].count,
						      .id = 1,
						      .bytes = cases[i].bytes };
			size_t length =
				request_bytes(bytes, &request, cases[i].meta, cases[i].length);

			want_cut_off(&v, bytes, length, cases[i].what);
		}
	victim_close(&v);
}

static void malformed__cut_at_every_byte(void **state)
{
	struct wh_request request = { .op = WH_WRITE, .count = 1, .id = 1, .bytes = 64 };
	struct wh_extent extent = { .length = 64 };
	uint8_t bytes[WH_REQUEST_SIZE + 64];
	struct wh_extent_writer writer;
	struct victim v;

	(void)state;
	open_data(&v);
	/* The region and offset that a whole request would write: it ends before the payload, which
	 * equals the present bytes. */
	extent.region = v.rw;
	wh_extents_start(&writer, bytes + WH_REQUEST_SIZE, 32);
	want(0, wh_extents_put(&writer, &extent));
	request.meta = (uint32_t)wh_extents_end(&writer);
	wh_request_encode(bytes, &request);
	for (size_t cut = 0; cut <= WH_REQUEST_SIZE + request.meta; cut++) {
		victim_greet_data(&v);
		want(0, send_all(v.data, bytes, cut));
		shutdown(v.data, SHUT_WR);
		want_true(raw_closes(v.data, SOON), "cut at %zu: still open", cut);
	}
	victim_close(&v);
}

/* Random changes of a valid request: the few flipped bits of a broken network card. */
static void malformed__random(void **state)
{
	uint64_t seed = 42;
	uint8_t bytes[WH_REQUEST_SIZE + WH_REQUEST_META];
	struct victim v;

	(void)state;
	open_data(&v);
	for (int i = 0; i < SCALE(400, 60); i++) {
		struct wh_request request = { .op = WH_READ, .count = 16, .id = 1 };
		struct wh_extent_writer writer;
		size_t length;

		wh_extents_start(&writer, bytes + WH_REQUEST_SIZE, WH_REQUEST_META);
		for (uint64_t e = 0; e < 16; e++) {
			struct wh_extent extent = { v.ro, pattern_random(&seed) % 4000, 1 + e };

			want(0, wh_extents_put(&writer, &extent));
			request.bytes += extent.length;
		}
		request.meta = (uint32_t)wh_extents_end(&writer);
		wh_request_encode(bytes, &request);
		length = WH_REQUEST_SIZE + request.meta;
		for (int flips = 0; flips < 4; flips++) {
			uint64_t bit = pattern_random(&seed) % (8 * length);

			bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
		/* A read turned into a write would write its own bytes. */
		if (bytes[0] == WH_WRITE)
			bytes[0] = 0;
		victim_greet_data(&v);
		send_all(v.data, bytes, length);
		shutdown(v.data, SHUT_WR);
		want_true(raw_closes(v.data, SOON), "time %d: still open", i);
	}
	victim_close(&v);
}

/* ---- slow and greedy clients ------------------------------------------- */

/* A write that stops within its payload does not stop the owner from unregistering the region. */
static void slow__half_a_write(void **state)
{
	struct wh_extent extent = { .length = SIZE };
	struct victim v;
	int64_t before;
	int error;

	(void)state;
	open_data(&v);
	extent.region = v.rw;
	child_fetch(v.f.child, v.memory, victim_offset(&v, v.rw), SIZE, buffer);
	want(0, raw_request(v.data, WH_WRITE, 1, &extent, 1, buffer, SIZE / 2));
	sleep_ms(50);
	victim_want_well(&v);
	before = quiet_now();
	error = child_unregister(v.f.child, v.rw_region);
	want_true(error == 0 || error == -EBUSY, "it is %d", error);
	want_true(quiet_now() - before < SOON * MS, "it took %lld ms",
		  (long long)((quiet_now() - before) / MS));
	if (error == 0) {
		memset(buffer, 0xee, SIZE);
		send_all(v.data, buffer + SIZE / 2, SIZE / 2);
		sleep_ms(50);
	}
	victim_close(&v);
}

/* A client that requests and never reads gets no more than fits the socket, and costs no more. */
static void slow__never_reads(void **state)
{
	struct wh_extent extents[256];
	struct victim v;
	uint64_t before, after;
	int64_t end;
	int sent = 0, error;

	(void)state;
	victim_open(&v, 5000);
	victim_greet_data(&v);
	victim_want_well(&v);
	before = child_resident(v.f.child);
	for (size_t i = 0; i < 256; i++)
		extents[i] = (struct wh_extent){ v.ro, 0, SIZE };
	end = now() + 2 * SECOND;
	while (now() < end) {
		struct timeval little = { .tv_usec = 100000 };

		setsockopt(v.data, SOL_SOCKET, SO_SNDTIMEO, &little, sizeof(little));
		if (raw_request(v.data, WH_READ, 1, extents, 256, NULL, 0))
			break;
		sent++;
	}
	victim_want_well(&v);
	after = child_resident(v.f.child);
	want_true(after < before + SCALE(32, 400) * MIB,
		  "after %d requests it has grown from %llu to %llu MiB", sent,
		  (unsigned long long)(before / MIB), (unsigned long long)(after / MIB));
	/* Its regions can be unregistered, including the one that it reads. */
	want(0, child_unregister(v.f.child, v.rw_region));
	end = quiet_now();
	error = child_unregister(v.f.child, v.ro_region);
	want_true(error == 0 || error == -EBUSY, "it is %d", error);
	want_true(quiet_now() - end < 2 * SOON * MS, "it took %lld ms",
		  (long long)((quiet_now() - end) / MS));
	victim_close(&v);
}

/* Very many connections of one session. */
static void greedy__connections(void **state)
{
	enum { COUNT = 300 };
	static int fds[COUNT];
	unsigned int before, after;
	struct victim v;
	int64_t end = now() + PATIENCE;

	(void)state;
	victim_open(&v, 5000);
	before = child_fds(v.f.child);
	for (int i = 0; i < COUNT; i++)
		fds[i] = raw_data(v.f.child->url, &v.welcome);
	victim_want_well(&v);
	for (int i = 0; i < COUNT; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	while ((after = child_fds(v.f.child)) > before + 4 && now() < end)
		sleep_ms(20);
	want_true(after <= before + 4, "%u descriptors, before: %u", after, before);
	victim_close(&v);
}

/* The end of the control connection ends its data connections. */
static void session__ends(void **state)
{
	struct victim v;

	(void)state;
	open_data(&v);
	want_answers(&v);
	close(v.control);
	v.control = -1;
	want_true(raw_closes(v.data, SOON), "the data connection outlives its session");
	victim_close(&v);
}

static const struct CMUnitTest tests[] = {
	TEST(range__outside),
	TEST(region__unknown),
	TEST(region__rights),
	TEST(list__good_and_wrong),
	TEST(malformed__header),
	TEST(malformed__extents),
	TEST(malformed__cut_at_every_byte),
	TEST(malformed__random),
	TEST(slow__half_a_write),
	TEST(slow__never_reads),
	TEST(greedy__connections),
	TEST(session__ends),
};

HARNESS_MAIN("hostile-data", tests)
