/* SPDX-License-Identifier: Apache-2.0 */
/* hostile-owner.c: an engine connects to an impostor that answers wrongly. The engine must give up
 * with an errno that says so, and change nothing outside of what it asked for. */
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "lib/command.h"
#include "lib/fixture.h"
#include "lib/raw.h"
#include "wire/bytes.h"

#define REGION (UINT64_C(7) << 32 | 77)
#define LENGTH (64 * KIB)
#define CONNECTIONS 32

/* ---- the impostor ------------------------------------------------------ */

enum answer {
	ANSWER_WELL,
	ANSWER_MORE_BYTES,
	ANSWER_FEWER_BYTES,
	ANSWER_NO_BYTES,
	ANSWER_OTHER_ID,
	ANSWER_OTHER_OP,
	ANSWER_TWICE,
	ANSWER_UNASKED,
	ANSWER_ERROR_OUTSIDE,
	ANSWER_ERROR_TWICE,
	ANSWER_ERRORS_TOO_MANY,
	ANSWER_ERROR_AND_ALL_BYTES,
	ANSWER_HUGE,
	ANSWER_CUT_OFF,
	ANSWER_GARBAGE,
	ANSWER_NEVER,
	ANSWER_END,
};

struct impostor {
	pthread_t thread;
	int listener;
	char url[64];
	atomic_bool stop;
	enum answer answer; /* to requests */
	/* Sent in place of the WELCOME and the region list; NULL: send those. */
	const void *greeting;
	size_t greeting_length;
	bool hangs_up; /* after the greeting */
	/* Sent after the WELCOME in place of the region list. */
	const void *list;
	size_t list_length;
	uint64_t length; /* of its region; 0: LENGTH */
	unsigned int refusal; /* errno to send in place of the WELCOME; 0: none */
	bool echoes_epoch; /* claim to be the connecting engine */
	struct pollfd fds[1 + CONNECTIONS];
	uint16_t role[1 + CONNECTIONS];
	bool proving[1 + CONNECTIONS]; /* has sent WELCOME, expects PROVE */
	struct wh_proofs proofs[1 + CONNECTIONS];
	nfds_t count;
	/* Used in place of this user's key. */
	const uint8_t *key;
};

static void hang_up(struct impostor *me, nfds_t i)
{
	close(me->fds[i].fd);
	me->count--;
	me->fds[i] = me->fds[me->count];
	me->role[i] = me->role[me->count];
	me->proving[i] = me->proving[me->count];
	me->proofs[i] = me->proofs[me->count];
}

static void send_list(struct impostor *me, int fd)
{
	struct wh_region_record record = { .id = REGION,
					   .address = 0x10000,
					   .length = LENGTH,
					   .access = WH_ACCESS_READ | WH_ACCESS_WRITE,
					   .kind = WH_MEMORY_PAGEABLE,
					   .name = "target" };
	uint8_t bytes[WH_REGION_RECORD_MAX];

	if (me->length)
		record.length = me->length;
	if (me->list)
		send_all(fd, me->list, me->list_length);
	else
		raw_send_frame(fd, WH_FRAME_REGIONS, WH_FRAME_LAST, bytes,
			       wh_region_encode(bytes, &record));
}

/* Handle the first frame of a connection. False: hang up. */
static bool take_hello(struct impostor *me, nfds_t i)
{
	uint8_t bytes[WH_HELLO_MAX], answer[WH_HELLO_MAX];
	struct wh_hello hello, welcome;
	struct wh_frame frame;
	int fd = me->fds[i].fd;
	int length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	if (length < 0 || frame.type != WH_FRAME_HELLO ||
	    wh_hello_decode(bytes, (size_t)length, &hello))
		return false;
	if (me->greeting) {
		send_all(fd, me->greeting, me->greeting_length);
		me->role[i] = WH_ROLE_LOCAL; /* ignore what follows */
		return !me->hangs_up;
	}
	if (me->refusal) {
		raw_send_frame(fd, WH_FRAME_REFUSED, 0, bytes,
			       wh_refusal_encode(bytes, (int)me->refusal, "because of the test"));
		return false;
	}
	me->role[i] = hello.role;
	welcome = raw_hello(hello.role);
	welcome.epoch = me->echoes_epoch ? hello.epoch : welcome.epoch;
	welcome.session = 5;
	length = raw_welcome(bytes, (size_t)length, &welcome, me->key, answer, &me->proofs[i]);
	if (length < 0)
		return false;
	raw_send_frame(fd, WH_FRAME_WELCOME, 0, answer, (size_t)length);
	me->proving[i] = true;
	return true;
}

static bool take_proof(struct impostor *me, nfds_t i)
{
	uint8_t bytes[WH_PROOF_SIZE];
	struct wh_frame frame;
	int fd = me->fds[i].fd;

	if (raw_receive_frame(fd, &frame, bytes, sizeof(bytes)) != WH_PROOF_SIZE ||
	    frame.type != WH_FRAME_PROVE ||
	    memcmp(bytes, me->proofs[i].initiator, sizeof(bytes)) != 0)
		return false;
	me->proving[i] = false;
	if (me->role[i] == WH_ROLE_CONTROL)
		send_list(me, fd);
	return true;
}

static bool take_frame(int fd)
{
	uint8_t bytes[WH_NOTIFICATION_MAX + 8];
	struct wh_frame frame;
	int length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	if (length < 0)
		return false;
	if (frame.type == WH_FRAME_PING)
		raw_send_frame(fd, WH_FRAME_PONG, 0, bytes, (size_t)length);
	if (frame.type == WH_FRAME_ABORT)
		raw_send_frame(fd, WH_FRAME_ABORTED, 0, bytes, (size_t)length);
	return true;
}

static void respond(int fd, uint8_t op, uint64_t id, uint32_t errors, const uint32_t *extents,
		    uint64_t bytes, size_t sent)
{
	static unsigned char payload[2 * LENGTH];
	uint8_t out[WH_RESPONSE_SIZE + 64], *at = out;
	struct wh_response response = { .op = op, .errors = errors, .id = id, .bytes = bytes };

	wh_response_encode(out, &response);
	at += WH_RESPONSE_SIZE;
	for (uint32_t i = 0; extents && i < errors; i++)
		at = wh_put32(wh_put32(at, extents[i]), EIO);
	memset(payload, 0xbb, sizeof(payload));
	if (send_all(fd, out, (size_t)(at - out)) == 0)
		send_all(fd, payload, sent);
}

/* Answer a request. False: hang up. */
static bool answer(struct impostor *me, int fd, const struct wh_request *r)
{
	static const uint32_t zero[] = { 0 }, twice[] = { 0, 0 }, outside[] = { 1000 };
	uint64_t bytes = r->op == WH_READ ? r->bytes : 0;
	unsigned char garbage[500];

	switch (me->answer) {
	case ANSWER_MORE_BYTES:
		respond(fd, r->op, r->id, 0, NULL, bytes + 1000, bytes + 1000);
		break;
	case ANSWER_FEWER_BYTES:
		respond(fd, r->op, r->id, 0, NULL, bytes / 2, bytes / 2);
		break;
	case ANSWER_NO_BYTES:
		respond(fd, r->op, r->id, 0, NULL, 0, 0);
		break;
	case ANSWER_OTHER_ID:
		respond(fd, r->op, r->id + 12345, 0, NULL, bytes, bytes);
		break;
	case ANSWER_OTHER_OP:
		respond(fd, r->op == WH_READ ? WH_WRITE : WH_READ, r->id, 0, NULL,
			r->op == WH_READ ? 0 : 100, r->op == WH_READ ? 0 : 100);
		break;
	case ANSWER_TWICE:
		respond(fd, r->op, r->id, 0, NULL, bytes, bytes);
		respond(fd, r->op, r->id, 0, NULL, bytes, bytes);
		break;
	case ANSWER_UNASKED:
		respond(fd, WH_READ, UINT64_MAX, 0, NULL, 1000, 1000);
		break;
	case ANSWER_ERROR_OUTSIDE:
		respond(fd, r->op, r->id, 1, outside, 0, 0);
		break;
	case ANSWER_ERROR_TWICE:
		respond(fd, r->op, r->id, 2, twice, 0, 0);
		break;
	case ANSWER_ERRORS_TOO_MANY:
		respond(fd, r->op, r->id, UINT32_MAX, NULL, 0, LENGTH);
		break;
	case ANSWER_ERROR_AND_ALL_BYTES:
		respond(fd, r->op, r->id, 1, zero, bytes, bytes);
		break;
	case ANSWER_HUGE:
		respond(fd, r->op, r->id, 0, NULL, UINT64_MAX, LENGTH);
		break;
	case ANSWER_CUT_OFF:
		respond(fd, r->op, r->id, 0, NULL, bytes, bytes ? bytes - 1 : 0);
		return false;
	case ANSWER_GARBAGE:
		pattern_fill(garbage, sizeof(garbage), 0, r->id);
		send_all(fd, garbage, sizeof(garbage));
		break;
	case ANSWER_NEVER:
		break;
	default:
		respond(fd, r->op, r->id, 0, NULL, bytes, bytes);
	}
	return true;
}

static bool take_request(struct impostor *me, int fd)
{
	static unsigned char rest[WH_REQUEST_META + LENGTH];
	uint8_t bytes[WH_REQUEST_SIZE];
	struct wh_request request;

	if (read_all(fd, bytes, sizeof(bytes)) || wh_request_decode(bytes, &request) ||
	    read_all(fd, rest, request.meta))
		return false;
	if (request.op == WH_WRITE &&
	    (request.bytes > sizeof(rest) || read_all(fd, rest, request.bytes)))
		return false;
	return answer(me, fd, &request);
}

static bool serve(struct impostor *me, nfds_t i)
{
	char dropped[4096];

	if (me->proving[i])
		return take_proof(me, i);
	switch (me->role[i]) {
	case 0:
		return take_hello(me, i);
	case WH_ROLE_CONTROL:
		return take_frame(me->fds[i].fd);
	case WH_ROLE_DATA:
		return take_request(me, me->fds[i].fd);
	default:
		return recv(me->fds[i].fd, dropped, sizeof(dropped), 0) > 0;
	}
}

static void *impostor(void *arg)
{
	struct impostor *me = arg;

	while (!me->stop) {
		poll(me->fds, me->count, 10);
		for (nfds_t i = me->count - 1; i > 0; i--)
			if (me->fds[i].revents && !serve(me, i))
				hang_up(me, i);
		if (me->fds[0].revents && me->count <= CONNECTIONS) {
			int fd = accept4(me->listener, NULL, NULL, SOCK_CLOEXEC);
			struct timeval patience = { .tv_sec = 2 };

			setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
			setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
			me->role[me->count] = 0;
			me->proving[me->count] = false;
			me->fds[me->count++] = (struct pollfd){ .fd = fd, .events = POLLIN };
		}
	}
	while (me->count > 1)
		hang_up(me, me->count - 1);
	return NULL;
}

static void impostor_start(struct impostor *me)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);

	me->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	want(0, bind(me->listener, (struct sockaddr *)&address, sizeof(address)));
	want(0, listen(me->listener, 64));
	want(0, getsockname(me->listener, (struct sockaddr *)&address, &length));
	snprintf(me->url, sizeof(me->url), "wherry://127.0.0.1:%d", ntohs(address.sin_port));
	me->fds[0] = (struct pollfd){ .fd = me->listener, .events = POLLIN };
	me->count = 1;
	want(0, pthread_create(&me->thread, NULL, impostor, me));
}

static void impostor_stop(struct impostor *me)
{
	me->stop = true;
	pthread_join(me->thread, NULL);
	close(me->listener);
}

/* ---- handshakes -------------------------------------------------------- */

/* Open the impostor as a peer, within a time limit; `text` receives the error. */
static int open_to(struct impostor *me, char text[256])
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
	int got = open_to(&me, text);

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

static void handshake__refused(void **state)
{
	struct impostor me = { .refusal = EPROTONOSUPPORT };
	char text[256];

	(void)state;
	want(-EPROTONOSUPPORT, open_to(&me, text));
	want_true(strstr(text, "because of the test"), "it says: %s", text);
	me = (struct impostor){ .refusal = EACCES };
	want(-EACCES, open_to(&me, text));
	/* An invalid errno. */
	me = (struct impostor){ .refusal = 0x7fffffff };
	want_true(open_to(&me, text) < 0, "refused with nonsense, and taken as a welcome");
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
	want(-EPROTONOSUPPORT, open_to(&newer, text));
	want_true(strstr(text, "answers in protocol version"), "it says: %s", text);
	length = welcome_bytes(bytes, WH_WIRE_VERSION, WH_ROLE_CONTROL, 5);
	bytes[WH_FRAME_HEADER] ^= 1; /* the magic */
	want_open(-EPROTO, (struct impostor){ .greeting = bytes, .greeting_length = length });
	length = welcome_bytes(bytes, WH_WIRE_VERSION, WH_ROLE_CONTROL, 5);
	for (size_t cut = 1; cut < length; cut += SCALE(7, 40)) {
		struct impostor me = { .greeting = bytes,
				       .greeting_length = cut,
				       .hangs_up = true };

		want_true(open_to(&me, text) < 0, "a WELCOME cut off at %zu", cut);
	}
}

static void handshake__regions_are_wrong(void **state)
{
	struct wh_region_record record = { .id = REGION,
					   .address = 4096,
					   .length = 10,
					   .access = WH_ACCESS_READ,
					   .kind = WH_MEMORY_PAGEABLE,
					   .name = "name" };
	uint8_t bytes[WH_FRAME_HEADER + WH_REGION_RECORD_MAX];
	size_t length = wh_region_encode(bytes + WH_FRAME_HEADER, &record);
	struct wh_frame frame = { (uint32_t)length, WH_FRAME_REGIONS, WH_FRAME_LAST };
	struct impostor me = { .list = bytes, .list_length = WH_FRAME_HEADER + length };

	(void)state;
	wh_frame_encode(bytes, &frame);
	want_open(0, me);
	bytes[WH_FRAME_HEADER + 24] = 0x55; /* access */
	want_open(-EPROTO, me);
	wh_region_encode(bytes + WH_FRAME_HEADER, &record);
	memset(bytes + WH_FRAME_HEADER + 16, 0, 8); /* length */
	want_open(-EPROTO, me);
	memset(bytes + WH_FRAME_HEADER + 8, 0xff, 16); /* address and length */
	want_open(-EPROTO, me);
	wh_region_encode(bytes + WH_FRAME_HEADER, &record);
	bytes[WH_FRAME_HEADER + 28] = '/'; /* name */
	want_open(-EPROTO, me);
	wh_region_encode(bytes + WH_FRAME_HEADER, &record);
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
	struct wh_region_options options = { .size = sizeof(options), .name = "ours" };
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
		want(-ENOENT, wh_peer_find(peer, "ours", 0, &remote));
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
	static const char *const config[] = { "timeout=500", "connections=2", NULL };
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
	transfer = fragment(&f, op, LENGTH, 100, 5000);
	batch = batch_of(&f, &transfer, 1);
	want(-EINVAL, wh_batch_progress(batch, &moved));
	want(0, wh_batch_submit(batch));
	status = wh_batch_wait(batch, kind == ANSWER_NEVER ? 300 * MS : PATIENCE);
	want_true((status == -ETIMEDOUT) == (kind == ANSWER_NEVER), "answer %d: %d", kind, status);
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
			want_true(f.local[i] == 0xbb, "answer %d: said to be done, is not", kind);
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
	harness_limit(60);
	for (enum answer kind = ANSWER_WELL; kind < ANSWER_END; kind++)
		try_answer(kind, WH_READ);
}

static void response__to_writes(void **state)
{
	(void)state;
	harness_limit(60);
	for (enum answer kind = ANSWER_WELL; kind < ANSWER_END; kind++)
		try_answer(kind, WH_WRITE);
}

/* ---- the command ------------------------------------------------------- */

/* The impostor answers pings and moves nothing: the command gives up, says so, and leaves no
 * file. */
static void want_stall(struct impostor *me, const char *directory, int status, const char *text,
		       const char *const *semaphores)
{
	int64_t before = now();
	struct command command;
	int got = command_run(&command, directory, NULL, semaphores);

	want_true(got == status && strstr(command.text, text), "%s ends with %d: %s", semaphores[0],
		  got, command.text);
	want_true(now() - before < SCALE(20, 60) * SECOND, "it took %lld ms",
		  (long long)((now() - before) / MS));
	want_true(!me->stop, "the owner has ended");
}

static void command__nothing_moves(void **state)
{
	struct impostor me = { .answer = ANSWER_NEVER };
	char directory[64], region[80], file[96];
	FILE *bytes;

	(void)state;
	harness_limit(SCALE(90, 300));
	impostor_start(&me);
	directory_make(directory);
	snprintf(region, sizeof(region), "%s/target", me.url);
	snprintf(file, sizeof(file), "%s/bytes", directory);
	bytes = fopen(file, "w");
	want_true(bytes && fputs("bytes", bytes) >= 0 && !fclose(bytes), "%s: %s", file,
		  strerror(errno));
	want_stall(&me, directory, 69, "nothing has moved for 1 s, although the engine answers",
		   SEMAPHORES("copy", region, "file", "--stall-timeout", "1"));
	want_stall(&me, directory, 69, "nothing has moved for 1 s",
		   SEMAPHORES("copy", "bytes", region, "--stall-timeout=1"));
	want_stall(&me, directory, 69, "nothing has moved for 1 s",
		   SEMAPHORES("copy", region, region, "--stall-timeout", "1", "--chunk", "4KiB"));
	want_stall(&me, directory, 2, "nothing has moved for 1 s",
		   SEMAPHORES("bench", "--peer", region, "--size", "4KiB", "--working-set", "16KiB",
			      "--seconds", "0.1", "--stall-timeout", "1"));
	want_stall(&me, directory, 0, "target", SEMAPHORES("explain", region));
	want(1, directory_count(directory));
	directory_remove(directory);
	impostor_stop(&me);
}

/* A region too large for any file is refused before a byte is written. */
static void command__region_too_large(void **state)
{
	struct impostor me = { .length = UINT64_C(1) << 63 };
	char directory[64], region[80];
	struct command command;

	(void)state;
	impostor_start(&me);
	directory_make(directory);
	snprintf(region, sizeof(region), "%s/target", me.url);
	for (unsigned i = 0; i < 2; i++) {
		int status = command_run(&command, directory, NULL,
					 i ? SEMAPHORES("copy", region, "file", "--offset", "1") :
					     SEMAPHORES("copy", region, "file"));

		want_true(status == 2 && strstr(command.text, "cannot write file: File too large"),
			  "it ends with %d: %s", status, command.text);
		want(0, directory_count(directory));
	}
	directory_remove(directory);
	impostor_stop(&me);
}

/* However a waiting copy is ended, no partial file stays. */
static void command__ended_by(int number, void (*before)(void))
{
	struct impostor me = { .answer = ANSWER_NEVER };
	char directory[64], region[80];
	struct command command;

	impostor_start(&me);
	directory_make(directory);
	snprintf(region, sizeof(region), "%s/target", me.url);
	command_start(&command, directory, before, SEMAPHORES("copy", region, "file"));
	command_opens(&command, directory);
	want(0, kill(command.pid, number));
	want(-number, command_wait(&command));
	want(0, directory_count(directory));
	directory_remove(directory);
	impostor_stop(&me);
}

static void command__interrupted(void **state)
{
	(void)state;
	command__ended_by(SIGTERM, NULL);
	command_refused = (struct command_refused){ .unnamed = EOPNOTSUPP };
	command__ended_by(SIGTERM, command_refuse);
}

static void command__killed(void **state)
{
	(void)state;
	command__ended_by(SIGKILL, NULL);
}

static const char *unnamed_missing(void)
{
	char path[64];
	int fd;

	directory_make(path);
	fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	directory_remove(path);
	if (fd < 0)
		return "the file system of temporary files has none without a name";
	close(fd);
	return needs_command.missing();
}

static const struct route needs_unnamed = { .name = "unnamed", .missing = unnamed_missing };

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(command__nothing_moves, needs_command),
	TEST_NEEDS(command__region_too_large, needs_command),
	TEST_NEEDS(command__interrupted, needs_command),
	TEST_NEEDS(command__killed, needs_unnamed),
	TEST(handshake__not_wherry),
	TEST(handshake__silence),
	TEST(handshake__refused),
	TEST(handshake__welcome_is_wrong),
	TEST(handshake__regions_are_wrong),
	TEST(handshake__claims_to_be_us),
	TEST(handshake__is_us),
	TEST(response__to_reads),
	TEST(response__to_writes),
};

HARNESS_MAIN("hostile-owner", tests)
