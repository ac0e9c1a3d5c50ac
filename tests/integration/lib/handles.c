/* SPDX-License-Identifier: Apache-2.0 */
/* handles.c: request handles of GPU memory from an owner */
#include "handles.h"

#include "wire/bytes.h"
#include "wire/wire.h"

int handles_connect(const struct wh_hello *welcome)
{
	struct wh_hello hello = raw_hello_of(WH_ROLE_LOCAL, welcome), answer;
	int fd = raw_unix(welcome->socket);

	want_true(fd >= 0, "there is no unix socket");
	want(0, raw_greet(fd, &hello, &answer));
	return fd;
}

int handles_ask(int fd, uint64_t id, uint32_t segment)
{
	uint8_t bytes[WH_MAP_SIZE];

	wh_put32(wh_put64(bytes, id), segment);
	return raw_send_frame(fd, WH_FRAME_MAP, 0, bytes, sizeof(bytes));
}

int handles_answer(int fd, struct wh_exported *exported)
{
	uint8_t bytes[WH_EXPORTED_MAX];
	struct wh_frame frame;
	int length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	want_true(length > 0, "no answer");
	if (frame.type == WH_FRAME_MAPPED)
		return -(int)wh_get32(bytes + 8);
	want(WH_FRAME_EXPORTED, frame.type);
	want(0, wh_exported_decode(bytes, (size_t)length, exported));
	return exported->error;
}

void gpu_pair_want_well(struct gpu_pair *p)
{
	static uint64_t seed = 1;
	struct wh_batch *batch = gpu_pair_batch(p, WH_WRITE);

	want_true(child_alive(p->child), "it has died");
	gpu_pair_fill(p, ++seed);
	want(0, gpu_run(batch));
	want_true(gpu_pair_copied(p, seed), "its memory is wrong");
	want(0, wh_batch_free(batch));
}
