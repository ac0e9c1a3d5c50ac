/* SPDX-License-Identifier: Apache-2.0 */
/* Speaking the protocol by hand, so that it can be spoken wrongly. */
#ifndef TESTS_RAW_H
#define TESTS_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

/* A connected socket whose reads give up after some seconds, or -1. */
int raw_connect(const char *url);
int raw_unix(const char *name);

/* 0, or -1 (the other side has closed it). */
int raw_send(int fd, const void *bytes, size_t length);
int raw_send_frame(int fd, uint16_t type, uint16_t flags, const void *payload, size_t length);

/* Read that many bytes: 0, or -1. */
int raw_receive(int fd, void *bytes, size_t length);
/* Read one frame; what does not fit is dropped. The length of its payload, or -1. */
int raw_receive_frame(int fd, struct wh_frame *frame, void *payload, size_t room);

/* Does the other side close it within so many ms? Reads and drops what still comes. */
bool raw_closes(int fd, int ms);

/* A HELLO of a role that would be accepted. */
struct wh_hello raw_hello(uint16_t role);
/* The same for a connection that belongs to a session. */
struct wh_hello raw_hello_of(uint16_t role, const struct wh_hello *welcome);
size_t raw_hello_bytes(uint8_t out[WH_FRAME_HEADER + WH_HELLO_MAX], const struct wh_hello *hello);

/* Send it and take the answer: 0 with the WELCOME; the positive errno of a REFUSED; -1: closed or
 * something else. */
int raw_greet(int fd, const struct wh_hello *hello, struct wh_hello *welcome);

/* Connected and welcome, or -1. */
int raw_control(const char *url, struct wh_hello *welcome);
int raw_data(const char *url, const struct wh_hello *welcome);

/* Read frames of a control connection to the end of the list of regions: how many there are, or -1.
 */
int raw_skip_regions(int fd);

/* Send a request for these extents. `payload` follows; NULL: none. */
int raw_request(int fd, uint8_t op, uint64_t id, const struct wh_extent *extents, size_t count,
		const void *payload, size_t length);

struct raw_error {
	uint32_t extent;
	int32_t error;
};

/* Read a response, its errors (at most `most`) and its payload (at most `room` bytes). 0, or -1. */
int raw_response(int fd, struct wh_response *response, struct raw_error *errors, uint32_t most,
		 void *payload, size_t room);

#endif
