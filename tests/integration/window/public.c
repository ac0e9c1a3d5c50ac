/* SPDX-License-Identifier: Apache-2.0 */
/* public.c: the public windows (wherry/window.h), on the fakes
 *
 * What the header promises, and every error. */
#include "public-fixture.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "window/driver-abi.h"

/* ---- what is promised ------------------------------------------------------------------------ */

static void open__by_default(void **state)
{
	struct wh_window_info info;
	struct wh_window *window;

	(void)state;
	assert_int_equal(
		wh_window_open(engine, (void *)(uintptr_t)(memory + 100), 1000, NULL, &window), 0);
	info = info_of(window);
	assert_string_equal(info.backend, "rm");
	assert_int_equal(info.mapping, WH_WINDOW_WC);
	assert_int_equal(info.address, memory + 100);
	assert_int_equal(info.length, 1000);
	assert_int_equal((uintptr_t)info.pointer % 4096, (memory + 100) % 4096);
	assert_non_null(strstr(info.said, "driver: /dev/gdrdrv: open"));
	assert_non_null(strstr(info.said, "dmabuf: mmap of a dma-buf needs a driver of CUDA 13.3"));
	assert_non_null(strstr(info.said, "rm: chosen"));
	want_usable(window, memory + 100);
	strcpy(info.pointer, "by a store");
	assert_string_equal(cu.alias(memory + 100), "by a store");
	assert_int_equal(wh_window_close(window), 0);
}

static void open__driver(void **state)
{
	struct wh_window *window;

	(void)state;
	fake_nvidia_gdrdrv(1);
	window = open_window(memory + 4097, 5000, NULL);
	assert_string_equal(info_of(window).backend, "driver");
	assert_int_equal(nvidia_state().pins, 1);
	want_usable(window, memory + 4097);
	assert_int_equal(wh_window_close(window), 0);
}

static void driver__pin_fails(void **state)
{
	static const struct {
		int error;
		const char *text;
	} rows[] = {
		{ ENOMEM, "BAR1 may be full" },
		{ EDQUOT, "max_pinned_per_user" },
		{ EINVAL, "gpuDirectRDMACapable" },
	};

	(void)state;
	fake_nvidia_gdrdrv(1);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		fake_nvidia_fail((uint32_t)GDRDRV_PIN_V2, 0, -rows[i].error);
		want_refused(memory, SIZE, "driver", rows[i].error, rows[i].text);
		fake_nvidia_fail((uint32_t)GDRDRV_PIN_V2, 0, 0);
		assert_int_equal(nvidia_state().pins, 0);
	}
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "driver")), 0);
}

static void open__several_in_any_order(void **state)
{
	struct wh_window *w[4];

	(void)state;
	w[0] = open_window(memory, SIZE, NULL);
	w[1] = open_window(memory + 5, 500, NULL);
	w[2] = open_window(memory, SIZE, "rm");
	w[3] = open_window(memory + SIZE / 2, SIZE / 2, NULL);
	assert_int_equal(nvidia_state().mapped, 1); /* they share it */
	assert_int_equal(wh_window_close(w[0]), 0);
	want_usable(w[1], memory + 5);
	assert_int_equal(wh_window_close(w[2]), 0);
	assert_int_equal(wh_window_close(w[1]), 0);
	want_usable(w[3], memory + SIZE / 2);
	assert_int_equal(wh_window_close(w[3]), 0);
	assert_int_equal(nvidia_state().mapped, 0);
}

static void copy__long_reads_by_engine(void **state)
{
	struct wh_window *window = open_window(memory, SIZE, NULL);
	unsigned char *sent = malloc(SIZE), *got = malloc(SIZE);

	(void)state;
	assert_int_equal(info_of(window).engine_from, 0);
	for (size_t i = 0; i < SIZE; i++)
		sent[i] = (unsigned char)(i * 13 + i / 255);
	for (size_t at = 0; at < 4097; at += 1365) {
		assert_int_equal(wh_window_copy_to(window, at, sent, SIZE - at), 0);
		assert_int_equal(wh_window_copy_from(window, at, got, SIZE - at), 0);
		assert_memory_equal(sent, got, SIZE - at);
	}
	assert_true(info_of(window).engine_from > 0);
	free(sent);
	free(got);
	assert_int_equal(wh_window_close(window), 0);
}

/* When other memory gets the address, the window still shows the old memory. */
static void copy__memory_freed_and_address_reused(void **state)
{
	uint64_t address, other;
	struct wh_window *window;
	unsigned char *got = malloc(SIZE);

	(void)state;
	assert_int_equal(cu.alloc(&address, SIZE), 0);
	memset(cu.alias(address), 0x22, SIZE);
	window = open_window(address, SIZE, NULL);
	assert_int_equal(wh_window_copy_from(window, 0, got, SIZE), 0);
	assert_int_equal(cu.free(address), 0);
	assert_int_equal(cu.alloc(&other, SIZE), 0);
	assert_int_equal(address, other); /* FAKE_CUDA_REUSE */
	memset(cu.alias(other), 0x33, SIZE);
	memset(got, 0, SIZE);
	assert_int_equal(wh_window_copy_from(window, 0, got, SIZE), 0);
	assert_int_equal(got[0], 0x22);
	assert_int_equal(got[SIZE - 1], 0x22);
	assert_int_equal(wh_window_close(window), 0);
	/* A new window does not share the old one's mapping. */
	window = open_window(other, SIZE, NULL);
	assert_int_equal(wh_window_copy_from(window, 0, got, 8), 0);
	assert_int_equal(got[0], 0x33);
	assert_int_equal(wh_window_close(window), 0);
	assert_int_equal(cu.free(other), 0);
	free(got);
}

static void staged__only_if_asked_for(void **state)
{
	struct wh_window_info info;
	struct wh_window *window;
	uint64_t address;
	char byte;

	(void)state;
	fake_nvidia_fail(FAKE_NVIDIA_OPEN, 0, -EACCES);
	want_refused(memory, SIZE, NULL, EACCES, ": rm: /dev/nvidiactl: open: Permission denied");
	assert_non_null(strstr(wh_error_text(), "; driver: /dev/gdrdrv: open"));
	window = open_window(memory, SIZE, "driver,dmabuf,rm,staged");
	info = info_of(window);
	assert_string_equal(info.backend, "staged");
	assert_null(info.pointer);
	assert_int_equal(info.mapping, WH_WINDOW_STAGED);
	assert_non_null(strstr(info.said, "rm: /dev/nvidiactl: open: Permission denied"));
	want_usable(window, memory);
	assert_int_equal(wh_window_close(window), 0);
	fake_nvidia_fail(FAKE_NVIDIA_OPEN, 0, 0);
	assert_int_equal(cu.alloc(&address, SIZE), 0);
	window = open_window(address, SIZE, "staged");
	assert_int_equal(cu.free(address), 0);
	assert_int_equal(wh_window_copy_to(window, 0, "x", 1), -EFAULT);
	assert_int_equal(wh_window_copy_from(window, 0, &byte, 1), -EFAULT);
	assert_non_null(strstr(wh_error_text(), "was freed"));
	assert_int_equal(wh_window_close(window), 0);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void open__arguments(void **state)
{
	static const char *const orders[] = {
		"",    ",",          "rm,",
		",rm", "rm,,driver", "gdrdrv",
		"RM",  "rm driver",  "rm,a_name_that_is_far_too_long"
	};
	struct wh_window_options options = { .size = sizeof(options) };
	struct wh_window *window;
	char setting[64];
	const char *settings[] = { setting, NULL };
	struct wh_engine_options engine_options = { .size = sizeof(engine_options),
						    .listen = "none",
						    .config = settings };
	struct wh_engine *other;
	void *at = (void *)(uintptr_t)memory;

	(void)state;
	assert_int_equal(wh_window_open(NULL, at, 1, NULL, &window), -EINVAL);
	assert_int_equal(wh_window_open(engine, at, 1, NULL, NULL), -EINVAL);
	assert_int_equal(wh_window_open(engine, NULL, 1, NULL, &window), -EINVAL);
	assert_int_equal(wh_window_open(engine, at, 0, NULL, &window), -EINVAL);
	options.size = 3;
	assert_int_equal(wh_window_open(engine, at, 1, &options, &window), -EINVAL);
	options = (struct wh_window_options){ .size = sizeof(options), .reserved = 1 };
	assert_int_equal(wh_window_open(engine, at, 1, &options, &window), -EINVAL);
	options = (struct wh_window_options){ .size = sizeof(options), .mapping = 4 };
	assert_int_equal(wh_window_open(engine, at, 1, &options, &window), -EINVAL);
	for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++)
		want_refused(memory, 1, orders[i], EINVAL,
			     "driver, dmabuf, rm, rm-watch or staged");
	strcpy(setting, "window=rm,shm");
	assert_int_equal(wh_engine_open(&engine_options, &other), -EINVAL);
	assert_non_null(strstr(wh_error_text(), "window=rm,shm"));
}

static void open__gpus_switched_off(void **state)
{
	const char *settings[] = { "cuda=off", NULL };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .config = settings };
	struct wh_engine *other;
	struct wh_window *window;

	(void)state;
	assert_int_equal(wh_engine_open(&options, &other), 0);
	assert_int_equal(wh_window_open(other, (void *)(uintptr_t)memory, 1, NULL, &window),
			 -ENODEV);
	assert_non_null(strstr(wh_error_text(), "WHERRY_CUDA"));
	assert_int_equal(wh_engine_close(other), 0);
}

static void open__not_such_memory(void **state)
{
	uint64_t freed, managed;
	char stack[8];
	void *pinned;

	(void)state;
	assert_int_equal(cu.alloc(&freed, SIZE), 0);
	assert_int_equal(cu.managed(&managed, 4096, 1), 0);
	assert_int_equal(cu.host_alloc(&pinned, 4096, 0), 0);
	assert_int_equal(cu.free(freed), 0);
	want_refused((uintptr_t)stack, sizeof(stack), NULL, EFAULT, "is not GPU memory");
	want_refused((uintptr_t)pinned, 8, NULL, EFAULT, "is not GPU memory");
	want_refused(freed, 8, NULL, EFAULT, "freed");
	want_refused(memory, SIZE + 1, NULL, EFAULT, "0x");
	want_refused(memory, SIZE_MAX, NULL, EINVAL, "no range of memory");
	want_refused(UINT64_MAX - 8, 8, NULL, EINVAL, "no range of memory");
	want_refused(managed, 8, NULL, EOPNOTSUPP, "needs no window");
	assert_int_equal(cu.free(managed), 0);
}

static void open__another_mapping(void **state)
{
	struct wh_window_options options = { .size = sizeof(options),
					     .backends = "rm",
					     .mapping = WH_WINDOW_CACHED };
	struct wh_window *window;

	(void)state;
	assert_int_equal(wh_window_open(engine, (void *)(uintptr_t)memory, 1, &options, &window),
			 -EOPNOTSUPP);
	assert_non_null(strstr(wh_error_text(), "type 2"));
	options.mapping = WH_WINDOW_WC;
	assert_int_equal(wh_window_open(engine, (void *)(uintptr_t)memory, 1, &options, &window),
			 0);
	assert_int_equal(wh_window_close(window), 0);
	fake_nvidia_gdrdrv(1);
	options.backends = "driver";
	options.mapping = WH_WINDOW_CACHED;
	assert_int_equal(wh_window_open(engine, (void *)(uintptr_t)memory, 1, &options, &window),
			 -EOPNOTSUPP);
	assert_non_null(strstr(wh_error_text(), "REQ_MAPPING_TYPE"));
}

static void copy__out_of_bounds(void **state)
{
	struct wh_window *window = open_window(memory + 10, 100, NULL);
	struct wh_window_info info = { .size = 3 };
	char bytes[101] = { 0 };

	(void)state;
	assert_int_equal(wh_window_copy_to(window, 0, bytes, 101), -EINVAL);
	assert_int_equal(wh_window_copy_to(window, 101, bytes, 0), -EINVAL);
	assert_int_equal(wh_window_copy_to(window, UINT64_MAX, bytes, 2), -EINVAL);
	assert_int_equal(wh_window_copy_to(window, 1, bytes, SIZE_MAX), -EINVAL);
	assert_int_equal(wh_window_copy_to(window, 0, NULL, 1), -EINVAL);
	assert_int_equal(wh_window_copy_from(window, 99, bytes, 2), -EINVAL);
	assert_int_equal(wh_window_copy_from(window, 0, NULL, 1), -EINVAL);
	assert_int_equal(wh_window_copy_to(window, 100, NULL, 0), 0);
	assert_int_equal(wh_window_copy_from(window, 100, NULL, 0), 0);
	assert_int_equal(wh_window_copy_to(NULL, 0, bytes, 1), -EINVAL);
	assert_int_equal(wh_window_copy_from(NULL, 0, bytes, 1), -EINVAL);
	assert_int_equal(wh_window_flush(NULL), -EINVAL);
	assert_int_equal(wh_window_close(NULL), 0);
	assert_int_equal(wh_window_info(NULL, &info), -EINVAL);
	assert_int_equal(wh_window_info(window, NULL), -EINVAL);
	assert_int_equal(wh_window_info(window, &info), -EINVAL);
	/* Bytes beside the window are untouched. */
	assert_int_equal(((unsigned char *)cu.alias(memory))[9], 0x11);
	assert_int_equal(((unsigned char *)cu.alias(memory))[110], 0x11);
	assert_int_equal(wh_window_close(window), 0);
}

static void engine__closes_after_its_windows(void **state)
{
	struct wh_window *window = open_window(memory, 1, NULL);

	(void)state;
	assert_int_equal(wh_engine_close(engine), -EBUSY);
	assert_non_null(strstr(wh_error_text(), "1 windows"));
	assert_int_equal(wh_window_close(window), 0);
}

static void fork__child_has_none(void **state)
{
	struct wh_window *window = open_window(memory, SIZE, NULL), *other;
	volatile char *at = info_of(window).pointer;
	char byte = 1;
	int status;
	pid_t child = fork();

	(void)state;
	assert_true(child >= 0);
	if (!child) {
		bool good = wh_window_open(engine, (void *)(uintptr_t)memory, 1, NULL, &other) ==
				    -EPERM &&
			    wh_window_copy_to(window, 0, &byte, 1) == -EPERM &&
			    wh_window_copy_from(window, 0, &byte, 1) == -EPERM &&
			    wh_window_flush(window) == -EPERM && wh_window_close(window) == -EPERM;

		signal(SIGSEGV, SIG_DFL);
		if (good)
			*at = 2;
		_exit(good ? 42 : 41);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) || (WEXITSTATUS(status) && WEXITSTATUS(status) < 41));
	want_usable(window, memory);
	assert_int_equal(wh_window_close(window), 0);
}
int main(void)
{
	static const struct CMUnitTest tests[] = {
		PUBLIC_TEST(open__by_default),
		PUBLIC_TEST(open__driver),
		PUBLIC_TEST(driver__pin_fails),
		PUBLIC_TEST(open__several_in_any_order),
		PUBLIC_TEST(copy__long_reads_by_engine),
		PUBLIC_TEST(copy__memory_freed_and_address_reused),
		PUBLIC_TEST(staged__only_if_asked_for),
		PUBLIC_TEST(open__arguments),
		PUBLIC_TEST(open__gpus_switched_off),
		PUBLIC_TEST(open__not_such_memory),
		PUBLIC_TEST(open__another_mapping),
		PUBLIC_TEST(copy__out_of_bounds),
		PUBLIC_TEST(engine__closes_after_its_windows),
		PUBLIC_TEST(fork__child_has_none),
	};

	public_load();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
