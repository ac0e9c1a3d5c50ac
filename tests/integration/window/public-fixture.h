/* SPDX-License-Identifier: Apache-2.0 */
/* public-fixture.h: what the tests of the public windows (wherry/window.h) share
 *
 * The fake CUDA driver, opened at run time, and for each test a fresh engine and one allocation.
 * Functions fail the running test on an error. */
#ifndef TESTS_INTEGRATION_WINDOW_PUBLIC_FIXTURE_H
#define TESTS_INTEGRATION_WINDOW_PUBLIC_FIXTURE_H

#include "../../unit/unit.h"

#include <wherry/wherry.h>

#include "../../fake/fake-control.h"
#include "nvidia-state.h"
#include "platform/cuda-abi.h"

#define SIZE ((size_t)1 << 20)

/* Functions of libcuda.so.1, which is the fake. */
struct cuda_functions {
	void *library;
	int (*init)(unsigned);
	int (*retain)(void **, int);
	int (*set_current)(void *);
	int (*alloc)(uint64_t *, size_t);
	int (*free)(uint64_t);
	int (*managed)(uint64_t *, size_t, unsigned);
	int (*host_alloc)(void **, size_t, unsigned);
	int (*export_range)(void *, uint64_t, size_t, int, unsigned long long);
	int (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
	int (*create)(uint64_t *, size_t, const struct wh_cuda_properties *, unsigned long long);
	int (*map)(uint64_t, size_t, size_t, uint64_t, unsigned long long);
	int (*access)(uint64_t, size_t, const struct wh_cuda_access *, size_t);
	void *(*alias)(uint64_t);
	int (*fail_call)(const char *, unsigned, int);
	void (*ipc_layout)(int);
	uint64_t (*calls)(const char *);
};

extern struct cuda_functions cu;
extern struct wh_engine *engine; /* of this test */
extern uint64_t memory; /* SIZE bytes on the GPU, of this test; each byte is 0x11 */

/* Open libcuda.so.1 and make its first GPU's context current. Once in a program. */
void public_load(void);

#define PUBLIC_TEST(name) cmocka_unit_test_setup_teardown(name, public_begin, public_end)
int public_begin(void **state);
int public_end(void **state);

/* Open a window by the first of `backends` (NULL: the default) that works. The caller closes it. */
struct wh_window *open_window(uint64_t address, size_t length, const char *backends);
/* wh_window_open() must return -error, with `text` in its error text, and leave its output alone.
 */
void want_refused(uint64_t address, size_t length, const char *backends, int error,
		  const char *text);
struct wh_window_info info_of(struct wh_window *window);
/* Write bytes through the window and read others, 7 bytes behind its start at `address`. */
void want_usable(struct wh_window *window, uint64_t address);

#endif
