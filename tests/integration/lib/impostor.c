/* SPDX-License-Identifier: Apache-2.0 */
/* impostor.c: greet an engine as an owner does, and answer its requests as the test wants */
#include "impostor.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "wire/bytes.h"

static void impostor_hang_up(struct impostor *me, nfds_t i)
{
	close(me->fds[i].fd);
	me->count--;
	me->fds[i] = me->fds[me->count];
	me->role[i] = me->role[me->count];
	me->proving[i] = me->proving[me->count];
	me->proofs[i] = me->proofs[me->count];
}

static void impostor_send_regions(struct impostor *me, int fd)
{
	struct wh_region_record record = { .id = IMPOSTOR_REGION,
					   .address = 0x10000,
					   .length = IMPOSTOR_LENGTH,
					   .access = WH_ACCESS_READ | WH_ACCESS_WRITE,
					   .kind = WH_MEMORY_PAGEABLE,
					   .name = "target" };
	uint8_t bytes[WH_REGIONS_HEAD + WH_REGION_RECORD_MAX];

	if (me->length)
		record.length = me->length;
	if (me->list)
		send_all(fd, me->list, me->list_length);
	else
		raw_send_frame(fd, WH_FRAME_REGIONS, WH_FRAME_LAST, bytes,
			       raw_regions(bytes, &record));
}

/* Handle the first frame of a connection. False: hang up. */
static bool impostor_handle_hello(struct impostor *me, nfds_t i)
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

static bool impostor_handle_proof(struct impostor *me, nfds_t i)
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
		impostor_send_regions(me, fd);
	return true;
}

static void impostor_look_up(const struct impostor *me, int fd, const uint8_t *bytes, int length)
{
	uint8_t answer[WH_REGIONS_HEAD];
	struct wh_question question;

	if (me->looked_up == LOOKED_UP_NEVER ||
	    wh_question_decode(bytes, (size_t)length, &question))
		return;
	wh_put64(wh_put64(answer, question.token), question.cursor + 1);
	raw_send_frame(fd, WH_FRAME_REGIONS, WH_FRAME_LAST, answer, sizeof(answer));
}

static bool impostor_handle_frame(const struct impostor *me, int fd)
{
	uint8_t bytes[WH_NOTIFICATION_MAX + 16];
	struct wh_frame frame;
	int length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	if (length < 0)
		return false;
	if (frame.type == WH_FRAME_PING)
		raw_send_frame(fd, WH_FRAME_PONG, 0, bytes, (size_t)length);
	if (frame.type == WH_FRAME_LOOKUP)
		impostor_look_up(me, fd, bytes, length);
	if (frame.type == WH_FRAME_ABORT)
		raw_send_frame(fd, WH_FRAME_ABORTED, 0, bytes, (size_t)length);
	return true;
}

static void impostor_respond(int fd, uint8_t op, uint64_t id, uint32_t errors,
			     const uint32_t *extents, uint64_t bytes, size_t sent)
{
	static unsigned char payload[2 * IMPOSTOR_LENGTH];
	uint8_t out[WH_RESPONSE_SIZE + 64], *at = out;
	struct wh_response response = { .op = op, .errors = errors, .id = id, .bytes = bytes };

	wh_response_encode(out, &response);
	at += WH_RESPONSE_SIZE;
	for (uint32_t i = 0; extents && i < errors; i++)
		at = wh_put32(wh_put32(at, extents[i]), EIO);
	memset(payload, IMPOSTOR_BYTE, sizeof(payload));
	if (send_all(fd, out, (size_t)(at - out)) == 0)
		send_all(fd, payload, sent);
}

/* Answer a request. False: hang up. */
static bool impostor_answer(struct impostor *me, int fd, const struct wh_request *r)
{
	static const uint32_t zero[] = { 0 }, twice[] = { 0, 0 }, outside[] = { 1000 };
	uint64_t bytes = r->op == WH_READ ? r->bytes : 0;
	unsigned char garbage[500];

	switch (me->answer) {
	case ANSWER_MORE_BYTES:
		impostor_respond(fd, r->op, r->id, 0, NULL, bytes + 1000, bytes + 1000);
		break;
	case ANSWER_FEWER_BYTES:
		impostor_respond(fd, r->op, r->id, 0, NULL, bytes / 2, bytes / 2);
		break;
	case ANSWER_NO_BYTES:
		impostor_respond(fd, r->op, r->id, 0, NULL, 0, 0);
		break;
	case ANSWER_OTHER_ID:
		impostor_respond(fd, r->op, r->id + 12345, 0, NULL, bytes, bytes);
		break;
	case ANSWER_OTHER_OP:
		impostor_respond(fd, r->op == WH_READ ? WH_WRITE : WH_READ, r->id, 0, NULL,
				 r->op == WH_READ ? 0 : 100, r->op == WH_READ ? 0 : 100);
		break;
	case ANSWER_TWICE:
		impostor_respond(fd, r->op, r->id, 0, NULL, bytes, bytes);
		impostor_respond(fd, r->op, r->id, 0, NULL, bytes, bytes);
		break;
	case ANSWER_UNASKED:
		impostor_respond(fd, WH_READ, UINT64_MAX, 0, NULL, 1000, 1000);
		break;
	case ANSWER_ERROR_OUTSIDE:
		impostor_respond(fd, r->op, r->id, 1, outside, 0, 0);
		break;
	case ANSWER_ERROR_TWICE:
		impostor_respond(fd, r->op, r->id, 2, twice, 0, 0);
		break;
	case ANSWER_ERRORS_TOO_MANY:
		impostor_respond(fd, r->op, r->id, UINT32_MAX, NULL, 0, IMPOSTOR_LENGTH);
		break;
	case ANSWER_ERROR_AND_ALL_BYTES:
		impostor_respond(fd, r->op, r->id, 1, zero, bytes, bytes);
		break;
	case ANSWER_HUGE:
		impostor_respond(fd, r->op, r->id, 0, NULL, UINT64_MAX, IMPOSTOR_LENGTH);
		break;
	case ANSWER_CUT_OFF:
		impostor_respond(fd, r->op, r->id, 0, NULL, bytes, bytes ? bytes - 1 : 0);
		return false;
	case ANSWER_GARBAGE:
		pattern_fill(garbage, sizeof(garbage), 0, r->id);
		send_all(fd, garbage, sizeof(garbage));
		break;
	case ANSWER_NEVER:
		break;
	default:
		impostor_respond(fd, r->op, r->id, 0, NULL, bytes, bytes);
	}
	return true;
}

static bool impostor_handle_request(struct impostor *me, int fd)
{
	static unsigned char rest[WH_REQUEST_META + IMPOSTOR_LENGTH];
	uint8_t bytes[WH_REQUEST_SIZE];
	struct wh_request request;

	if (read_all(fd, bytes, sizeof(bytes)) || wh_request_decode(bytes, &request) ||
	    read_all(fd, rest, request.meta))
		return false;
	if (request.op == WH_WRITE &&
	    (request.bytes > sizeof(rest) || read_all(fd, rest, request.bytes)))
		return false;
	return impostor_answer(me, fd, &request);
}

static bool impostor_serve(struct impostor *me, nfds_t i)
{
	char dropped[4096];

	if (me->proving[i])
		return impostor_handle_proof(me, i);
	switch (me->role[i]) {
	case 0:
		return impostor_handle_hello(me, i);
	case WH_ROLE_CONTROL:
		return impostor_handle_frame(me, me->fds[i].fd);
	case WH_ROLE_DATA:
		return impostor_handle_request(me, me->fds[i].fd);
	default:
		return recv(me->fds[i].fd, dropped, sizeof(dropped), 0) > 0;
	}
}

static void *impostor_run(void *arg)
{
	struct impostor *me = arg;

	while (!me->stop) {
		poll(me->fds, me->count, 10);
		for (nfds_t i = me->count - 1; i > 0; i--)
			if (me->fds[i].revents && !impostor_serve(me, i))
				impostor_hang_up(me, i);
		if (me->fds[0].revents && me->count <= IMPOSTOR_CONNECTIONS) {
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
		impostor_hang_up(me, me->count - 1);
	return NULL;
}

void impostor_start(struct impostor *me)
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
	want(0, pthread_create(&me->thread, NULL, impostor_run, me));
}

void impostor_stop(struct impostor *me)
{
	me->stop = true;
	pthread_join(me->thread, NULL);
	close(me->listener);
}
