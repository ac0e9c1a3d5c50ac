/* SPDX-License-Identifier: Apache-2.0 */
/* raw.c: speak the protocol by hand: frames, handshakes with proofs, requests */
#include "raw.h"

#include "harness.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "net/trust.h"
#include "wire/bytes.h"

#define SECONDS 10 /* time-out of a read or a write */

static int raw_finish_connect(int fd, const struct sockaddr *address, size_t length)
{
	struct timeval patience = { .tv_sec = SECONDS };
	int one = 1;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(fd, address, (socklen_t)length) == 0)
		return fd;
	close(fd);
	return -1;
}

int raw_connect(const char *url)
{
	const char *port = strrchr(url, ':');
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	if (!port)
		return -1;
	address.sin_port = htons((uint16_t)atoi(port + 1));
	return raw_finish_connect(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
				  (struct sockaddr *)&address, sizeof(address));
}

int raw_unix(const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t length = strlen(name);

	if (length + 1 > sizeof(address.sun_path))
		return -1;
	memcpy(address.sun_path + 1, name, length);
	return raw_finish_connect(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
				  (struct sockaddr *)&address,
				  offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int raw_meet(const char *folder, const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/wherry-%u/%s", folder,
		 (unsigned)geteuid(), name);
	return raw_finish_connect(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
				  (struct sockaddr *)&address, sizeof(address));
}

int raw_send_frame(int fd, uint16_t type, uint16_t flags, const void *payload, size_t length)
{
	uint8_t header[WH_FRAME_HEADER];
	struct wh_frame frame = { .length = (uint32_t)length, .type = type, .flags = flags };

	wh_frame_encode(header, &frame);
	return send_all(fd, header, sizeof(header)) ? -1 : send_all(fd, payload, length);
}

static int raw_drop(int fd, uint64_t length)
{
	char bytes[4096];

	while (length) {
		size_t n = length < sizeof(bytes) ? (size_t)length : sizeof(bytes);

		if (read_all(fd, bytes, n))
			return -1;
		length -= n;
	}
	return 0;
}

int raw_receive_frame(int fd, struct wh_frame *frame, void *payload, size_t room)
{
	uint8_t header[WH_FRAME_HEADER];
	size_t kept;

	if (read_all(fd, header, sizeof(header)) || wh_frame_decode(header, frame))
		return -1;
	kept = frame->length < room ? frame->length : room;
	if (read_all(fd, payload, kept) || raw_drop(fd, frame->length - kept))
		return -1;
	return (int)frame->length;
}

bool raw_closes(int fd, int ms)
{
	struct timespec t;
	int64_t end;
	char bytes[4096];

	clock_gettime(CLOCK_MONOTONIC, &t);
	end = t.tv_sec * 1000LL + t.tv_nsec / 1000000 + ms;
	for (;;) {
		struct pollfd polled = { .fd = fd, .events = POLLIN };
		int64_t left;

		clock_gettime(CLOCK_MONOTONIC, &t);
		left = end - (t.tv_sec * 1000LL + t.tv_nsec / 1000000);
		if (left < 0 || poll(&polled, 1, (int)left) == 0)
			return false;
		if (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) <= 0)
			return true;
	}
}

struct wh_hello raw_hello(uint16_t role)
{
	struct wh_hello hello = {
		.version_min = WH_WIRE_VERSION,
		.version_max = WH_WIRE_VERSION,
		.role = role,
		.epoch = 0x1122334455667788,
		.name = "raw",
		.auth_length = WH_NONCE_SIZE,
		.auth = "a nonce that anybody could guess",
	};

	return hello;
}

struct wh_hello raw_hello_of(uint16_t role, const struct wh_hello *welcome)
{
	struct wh_hello hello = raw_hello(role);

	hello.expected = welcome->epoch;
	hello.session = welcome->session;
	memcpy(hello.host, welcome->host, sizeof(hello.host));
	return hello;
}

size_t raw_hello_bytes(uint8_t out[WH_FRAME_HEADER + WH_HELLO_MAX], const struct wh_hello *hello)
{
	size_t length = wh_hello_encode(out + WH_FRAME_HEADER, hello);
	struct wh_frame frame = { .length = (uint32_t)length, .type = WH_FRAME_HELLO };

	wh_frame_encode(out, &frame);
	return WH_FRAME_HEADER + length;
}

/* ---- keys -------------------------------------------------------------- */

static struct wh_trust trust;

static void learn_key(void)
{
	struct wh_config config;

	if (trust.crypto.library)
		return;
	if (wh_config_load(&config, NULL) || wh_trust_open(&trust, &config) || trust.error)
		abort();
}

const struct wh_crypto *raw_crypto(void)
{
	learn_key();
	return &trust.crypto;
}

const uint8_t *raw_key(void)
{
	learn_key();
	return trust.keys.key[0];
}

/* The keys of the most recent sessions. */
static struct {
	uint64_t epoch, session;
	uint8_t key[WH_KEY_SIZE];
} sessions[64];
static unsigned session_next;

static const uint8_t *key_of(const struct wh_hello *hello, uint64_t epoch)
{
	if (hello->role == WH_ROLE_CONTROL)
		return raw_key();
	for (unsigned i = session_next; i && session_next - i < 64; i--)
		if (sessions[(i - 1) % 64].session == hello->session &&
		    sessions[(i - 1) % 64].epoch == epoch)
			return sessions[(i - 1) % 64].key;
	return raw_key();
}

const uint8_t *raw_session_key(const struct wh_hello *welcome)
{
	struct wh_hello hello = raw_hello_of(WH_ROLE_LOCAL, welcome);

	return key_of(&hello, welcome->epoch);
}

static void keep_key(const struct wh_hello *welcome, const struct wh_proofs *proofs)
{
	unsigned i = session_next++ % 64;

	sessions[i].epoch = welcome->epoch;
	sessions[i].session = welcome->session;
	memcpy(sessions[i].key, proofs->session, WH_KEY_SIZE);
}

/* ---- handshakes -------------------------------------------------------- */

int raw_shake(int fd, const struct wh_hello *hello, const uint8_t *key, struct raw_shake *out)
{
	char text[WH_REFUSAL_MAX];
	struct wh_frame frame;
	int length, error;

	out->hello_length = raw_hello_bytes(out->hello, hello);
	if (send_all(fd, out->hello, out->hello_length))
		return -1;
	length = raw_receive_frame(fd, &frame, out->welcome, sizeof(out->welcome));
	if (length < 0)
		return -1;
	out->welcome_length = (size_t)length;
	if (frame.type == WH_FRAME_REFUSED)
		return wh_refusal_decode(out->welcome, out->welcome_length, &error, text) ? -1 :
											    error;
	if (frame.type != WH_FRAME_WELCOME ||
	    wh_hello_decode(out->welcome, out->welcome_length, &out->decoded))
		return -1;
	return wh_proofs_make(raw_crypto(), key ? key : key_of(hello, out->decoded.epoch),
			      out->hello + WH_FRAME_HEADER, out->hello_length - WH_FRAME_HEADER,
			      out->welcome, out->welcome_length, &out->proofs) ?
		       -1 :
		       0;
}

int raw_prove(int fd, const uint8_t proof[WH_PROOF_SIZE])
{
	return raw_send_frame(fd, WH_FRAME_PROVE, 0, proof, WH_PROOF_SIZE);
}

int raw_greet(int fd, const struct wh_hello *hello, struct wh_hello *welcome)
{
	uint8_t alive[16];
	struct raw_shake shake;
	struct wh_frame frame;
	int error = raw_shake(fd, hello, NULL, &shake);

	if (error)
		return error;
	if (memcmp(shake.proofs.owner, shake.decoded.auth + WH_NONCE_SIZE, WH_PROOF_SIZE) != 0 ||
	    raw_prove(fd, shake.proofs.initiator))
		return -1;
	if (hello->role == WH_ROLE_CONTROL)
		keep_key(&shake.decoded, &shake.proofs);
	/* The file descriptor sent with this frame is not received; the kernel closes it. */
	if (hello->role == WH_ROLE_LOCAL &&
	    (raw_receive_frame(fd, &frame, alive, sizeof(alive)) < 0 ||
	     frame.type != WH_FRAME_ALIVE))
		return -1;
	*welcome = shake.decoded;
	return 0;
}

int raw_welcome(const uint8_t *hello, size_t length, const struct wh_hello *welcome,
		const uint8_t *key, uint8_t out[WH_HELLO_MAX], struct wh_proofs *proofs)
{
	struct wh_hello received, full = *welcome;
	size_t end;

	if (wh_hello_decode(hello, length, &received))
		return -1;
	full.auth_length = WH_NONCE_SIZE + WH_PROOF_SIZE;
	end = wh_hello_encode(out, &full);
	if (wh_proofs_make(raw_crypto(), key ? key : key_of(&received, welcome->epoch), hello,
			   length, out, end, proofs))
		return -1;
	memcpy(out + end - WH_PROOF_SIZE, proofs->owner, WH_PROOF_SIZE);
	if (received.role == WH_ROLE_CONTROL)
		keep_key(welcome, proofs);
	return (int)end;
}

int raw_control(const char *url, struct wh_hello *welcome)
{
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	int fd = raw_connect(url);

	if (fd >= 0 && raw_greet(fd, &hello, welcome) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

int raw_data(const char *url, const struct wh_hello *welcome)
{
	struct wh_hello hello = raw_hello_of(WH_ROLE_DATA, welcome), answer;
	int fd = raw_connect(url);

	if (fd >= 0 && raw_greet(fd, &hello, &answer) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

size_t raw_regions(uint8_t *out, const struct wh_region_record *record)
{
	memset(out, 0, WH_REGIONS_HEAD);
	return WH_REGIONS_HEAD + wh_region_encode(out + WH_REGIONS_HEAD, record);
}

int raw_ask(int fd, const struct wh_question *question, const void *entries, size_t length)
{
	uint8_t bytes[WH_QUESTION_HEAD + WH_QUESTION_MAX * WH_RANGE_SIZE];
	size_t head = wh_question_encode(bytes, question);

	if (length)
		memcpy(bytes + head, entries, length);
	return raw_send_frame(fd, WH_FRAME_LOOKUP, 0, bytes, head + length);
}

/* Receive an answer. Returns the number of regions, or -1. */
static int raw_answered(int fd, uint64_t *next)
{
	static uint8_t payload[WH_FRAME_MAX];
	struct wh_frame frame;
	int count = 0;

	do {
		struct wh_region_record record;
		const uint8_t *at = payload + WH_REGIONS_HEAD;
		int length = raw_receive_frame(fd, &frame, payload, sizeof(payload)), more;

		if (length < WH_REGIONS_HEAD || frame.type != WH_FRAME_REGIONS)
			return -1;
		while ((more = wh_region_decode(&at, payload + length, &record)) > 0)
			count++;
		if (more < 0)
			return -1;
	} while (!(frame.flags & WH_FRAME_LAST));
	*next = wh_get64(payload + 8);
	return count;
}

int raw_count_regions(int fd)
{
	struct wh_question question = { .kind = WH_ASK_LIST, .count = WH_QUESTION_MAX };
	int count = 0, got;

	do {
		got = raw_ask(fd, &question, NULL, 0) ? -1 : raw_answered(fd, &question.cursor);
		if (got < 0)
			return -1;
		count += got;
	} while (question.cursor);
	return count;
}

int raw_lookup(int fd, uint64_t id)
{
	struct wh_question question = { .token = 1, .kind = WH_ASK_IDS, .count = 1 };
	uint8_t bytes[8];
	uint64_t next;

	wh_put64(bytes, id);
	return raw_ask(fd, &question, bytes, sizeof(bytes)) ? -1 : raw_answered(fd, &next);
}

static int request_send(int fd, struct wh_request *request, const struct wh_extent *extents)
{
	uint8_t bytes[WH_REQUEST_SIZE + WH_REQUEST_META];
	struct wh_extent_writer writer;

	wh_extents_start(&writer, bytes + WH_REQUEST_SIZE, WH_REQUEST_META);
	for (size_t i = 0; i < request->count; i++) {
		if (wh_extents_put(&writer, &extents[i]))
			return -1;
		request->bytes += extents[i].length;
	}
	request->meta = (uint32_t)wh_extents_end(&writer);
	wh_request_encode(bytes, request);
	return send_all(fd, bytes, WH_REQUEST_SIZE + request->meta);
}

int raw_request(int fd, uint8_t op, uint64_t id, const struct wh_extent *extents, size_t count,
		const void *payload, size_t length)
{
	struct wh_request request = { .op = op, .id = id, .count = (uint32_t)count };

	if (request_send(fd, &request, extents))
		return -1;
	return payload ? send_all(fd, payload, length) : 0;
}

int raw_request_slot(int fd, uint8_t op, uint32_t slot, const struct wh_extent *extents,
		     size_t count)
{
	struct wh_request request = { .op = op, .slot = slot, .count = (uint32_t)count };

	return request_send(fd, &request, extents);
}

int raw_response(int fd, struct wh_response *response, struct raw_error *errors, uint32_t most,
		 void *payload, size_t room)
{
	uint8_t bytes[WH_RESPONSE_SIZE];

	if (read_all(fd, bytes, sizeof(bytes)) || wh_response_decode(bytes, response) ||
	    response->errors > most || response->bytes > room)
		return -1;
	for (uint32_t i = 0; i < response->errors; i++) {
		struct wh_bytes in = { bytes, bytes + WH_RESPONSE_ERROR_SIZE, false };

		if (read_all(fd, bytes, WH_RESPONSE_ERROR_SIZE))
			return -1;
		errors[i].extent = wh_take32(&in);
		errors[i].error = (int32_t)wh_take32(&in);
	}
	return read_all(fd, payload, response->bytes);
}
