/* SPDX-License-Identifier: Apache-2.0 */
#include "raw.h"

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

#include "wire/bytes.h"

#define SECONDS 10 /* for a read or a write */

static int finish(int fd, const struct sockaddr *address, size_t length)
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
	return finish(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), (struct sockaddr *)&address,
		      sizeof(address));
}

int raw_unix(const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t length = strlen(name);

	if (length + 1 > sizeof(address.sun_path))
		return -1;
	memcpy(address.sun_path + 1, name, length);
	return finish(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), (struct sockaddr *)&address,
		      offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int raw_send(int fd, const void *bytes, size_t length)
{
	const char *at = bytes;

	while (length) {
		ssize_t n = send(fd, at, length, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		at += n;
		length -= (size_t)n;
	}
	return 0;
}

int raw_send_frame(int fd, uint16_t type, uint16_t flags, const void *payload, size_t length)
{
	uint8_t header[WH_FRAME_HEADER];
	struct wh_frame frame = { .length = (uint32_t)length, .type = type, .flags = flags };

	wh_frame_encode(header, &frame);
	return raw_send(fd, header, sizeof(header)) ? -1 : raw_send(fd, payload, length);
}

int raw_receive(int fd, void *bytes, size_t length)
{
	char *at = bytes;

	while (length) {
		ssize_t n = recv(fd, at, length, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		at += n;
		length -= (size_t)n;
	}
	return 0;
}

static int drop(int fd, uint64_t length)
{
	char bytes[4096];

	while (length) {
		size_t n = length < sizeof(bytes) ? (size_t)length : sizeof(bytes);

		if (raw_receive(fd, bytes, n))
			return -1;
		length -= n;
	}
	return 0;
}

int raw_receive_frame(int fd, struct wh_frame *frame, void *payload, size_t room)
{
	uint8_t header[WH_FRAME_HEADER];
	size_t kept;

	if (raw_receive(fd, header, sizeof(header)) || wh_frame_decode(header, frame))
		return -1;
	kept = frame->length < room ? frame->length : room;
	if (raw_receive(fd, payload, kept) || drop(fd, frame->length - kept))
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
	};

	return hello;
}

struct wh_hello raw_hello_of(uint16_t role, const struct wh_hello *welcome)
{
	struct wh_hello hello = raw_hello(role);

	hello.expected = welcome->epoch;
	hello.session = welcome->session;
	hello.token = welcome->token;
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

int raw_greet(int fd, const struct wh_hello *hello, struct wh_hello *welcome)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX];
	struct wh_frame frame;
	char text[WH_REFUSAL_MAX];
	int length, error;

	if (raw_send(fd, bytes, raw_hello_bytes(bytes, hello)))
		return -1;
	length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));
	if (length < 0)
		return -1;
	if (frame.type == WH_FRAME_REFUSED)
		return wh_refusal_decode(bytes, (size_t)length, &error, text) ? -1 : error;
	if (frame.type != WH_FRAME_WELCOME || wh_hello_decode(bytes, (size_t)length, welcome))
		return -1;
	return 0;
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

int raw_skip_regions(int fd)
{
	static uint8_t payload[WH_FRAME_MAX];
	struct wh_frame frame;
	int count = 0;

	do {
		struct wh_region_record record;
		const uint8_t *at = payload;
		int length = raw_receive_frame(fd, &frame, payload, sizeof(payload)), more;

		if (length < 0 || frame.type != WH_FRAME_REGIONS)
			return -1;
		while ((more = wh_region_decode(&at, payload + length, &record)) > 0)
			count++;
		if (more < 0)
			return -1;
	} while (!(frame.flags & WH_FRAME_LAST));
	return count;
}

int raw_request(int fd, uint8_t op, uint64_t id, const struct wh_extent *extents, size_t count,
		const void *payload, size_t length)
{
	uint8_t bytes[WH_REQUEST_SIZE + WH_REQUEST_META];
	struct wh_request request = { .op = op, .id = id, .count = (uint32_t)count };
	struct wh_extent_writer writer;

	wh_extents_start(&writer, bytes + WH_REQUEST_SIZE, WH_REQUEST_META);
	for (size_t i = 0; i < count; i++) {
		if (wh_extents_put(&writer, &extents[i]))
			return -1;
		request.bytes += extents[i].length;
	}
	request.meta = (uint32_t)wh_extents_end(&writer);
	wh_request_encode(bytes, &request);
	if (raw_send(fd, bytes, WH_REQUEST_SIZE + request.meta))
		return -1;
	return payload ? raw_send(fd, payload, length) : 0;
}

int raw_response(int fd, struct wh_response *response, struct raw_error *errors, uint32_t most,
		 void *payload, size_t room)
{
	uint8_t bytes[WH_RESPONSE_SIZE];

	if (raw_receive(fd, bytes, sizeof(bytes)) || wh_response_decode(bytes, response) ||
	    response->errors > most || response->bytes > room)
		return -1;
	for (uint32_t i = 0; i < response->errors; i++) {
		struct wh_bytes in = { bytes, bytes + WH_RESPONSE_ERROR_SIZE, false };

		if (raw_receive(fd, bytes, WH_RESPONSE_ERROR_SIZE))
			return -1;
		errors[i].extent = wh_take32(&in);
		errors[i].error = (int32_t)wh_take32(&in);
	}
	return raw_receive(fd, payload, response->bytes);
}
