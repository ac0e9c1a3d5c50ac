/* SPDX-License-Identifier: Apache-2.0 */
/* The public windows (wherry/window.h), on the fakes: what the header promises, every error, and a
 * failure of each of the NVIDIA driver's calls. */
#include "../../unit/unit.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/wherry.h>

#include "../../fake/fake-control.h"
#include "../../fake/nvidia-control.h"
#include "platform/cuda-abi.h"
#include "platform/rm-abi.h"
#include "window/driver-abi.h"

#define SIZE ((size_t)1 << 20)

static struct {
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
} cu;

static struct wh_engine *engine;
static uint64_t memory;

static void look_up(const char *name, void *out)
{
	void *found = dlsym(cu.library, name);

	assert_non_null(found);
	memcpy(out, &found, sizeof(found));
}

static void open_cuda(void)
{
	void *context;

	cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	assert_non_null(cu.library);
	look_up("cuInit", &cu.init);
	look_up("cuDevicePrimaryCtxRetain", &cu.retain);
	look_up("cuCtxSetCurrent", &cu.set_current);
	look_up("cuMemAlloc_v2", &cu.alloc);
	look_up("cuMemFree_v2", &cu.free);
	look_up("cuMemAllocManaged", &cu.managed);
	look_up("cuMemHostAlloc", &cu.host_alloc);
	look_up("cuMemGetHandleForAddressRange", &cu.export_range);
	look_up("cuMemAddressReserve", &cu.reserve);
	look_up("cuMemCreate", &cu.create);
	look_up("cuMemMap", &cu.map);
	look_up("cuMemSetAccess", &cu.access);
	look_up("fake_cuda_alias", &cu.alias);
	look_up("fake_cuda_fail", &cu.fail_call);
	look_up("fake_cuda_ipc_layout", &cu.ipc_layout);
	look_up("fake_cuda_calls", &cu.calls);
	assert_int_equal(cu.init(0), 0);
	assert_int_equal(cu.retain(&context, 0), 0);
	assert_int_equal(cu.set_current(context), 0);
}

static struct fake_nvidia state_now(void)
{
	struct fake_nvidia state;

	fake_nvidia_state(&state);
	return state;
}

/* ---- a fresh engine for each test ------------------------------------------------------------ */

static int begin(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };

	(void)state;
	fake_nvidia_version("580.159.04");
	fake_nvidia_gdrdrv(0);
	assert_int_equal(wh_engine_open(&options, &engine), 0);
	assert_int_equal(cu.alloc(&memory, SIZE), 0);
	memset(cu.alias(memory), 0x11, SIZE);
	return 0;
}

static int end(void **state)
{
	struct fake_nvidia left;

	(void)state;
	assert_int_equal(cu.free(memory), 0);
	assert_int_equal(wh_engine_close(engine), 0);
	left = state_now();
	assert_int_equal(left.clients, 0);
	assert_int_equal(left.objects, 0);
	assert_int_equal(left.mapped, 0);
	assert_int_equal(left.pins, 0);
	assert_int_equal(left.violations, 0);
	return 0;
}

static struct wh_window *open_window(uint64_t address, size_t length, const char *backends)
{
	struct wh_window_options options = { .size = sizeof(options), .backends = backends };
	struct wh_window *window = NULL;
	int error = wh_window_open(engine, (void *)(uintptr_t)address, length, &options, &window);

	if (error)
		print_message("%d: %s\n", error, wh_error_text());
	assert_int_equal(error, 0);
	return window;
}

static void refused_by(uint64_t address, size_t length, const char *backends, int error,
		       const char *says)
{
	struct wh_window_options options = { .size = sizeof(options), .backends = backends };
	struct wh_window *window = (void *)&options;
	int got = wh_window_open(engine, (void *)(uintptr_t)address, length, &options, &window);

	if (got != -error || !strstr(wh_error_text(), says))
		print_message("%d, wanted %d and '%s': %s\n", got, -error, says, wh_error_text());
	assert_int_equal(got, -error);
	assert_non_null(strstr(wh_error_text(), says));
	assert_ptr_equal(window, &options);
}

static struct wh_window_info info_of(struct wh_window *window)
{
	struct wh_window_info info = { .size = sizeof(info) };

	assert_int_equal(wh_window_info(window, &info), 0);
	return info;
}

static void use(struct wh_window *window, uint64_t address)
{
	char sent[100], got[100];

	memset(sent, 'x', sizeof(sent));
	assert_int_equal(wh_window_copy_to(window, 7, sent, sizeof(sent)), 0);
	assert_int_equal(wh_window_flush(window), 0);
	assert_memory_equal(cu.alias(address + 7), sent, sizeof(sent));
	strcpy(cu.alias(address + 7), "from the GPU");
	assert_int_equal(wh_window_copy_from(window, 7, got, sizeof(got)), 0);
	assert_string_equal(got, "from the GPU");
}

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
	use(window, memory + 100);
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
	assert_int_equal(state_now().pins, 1);
	use(window, memory + 4097);
	assert_int_equal(wh_window_close(window), 0);
}

static void driver__pin_fails(void **state)
{
	static const struct {
		int error;
		const char *says;
	} rows[] = {
		{ ENOMEM, "BAR1 may be full" },
		{ EDQUOT, "max_pinned_per_user" },
		{ EINVAL, "gpuDirectRDMACapable" },
	};

	(void)state;
	fake_nvidia_gdrdrv(1);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		fake_nvidia_fail((uint32_t)GDRDRV_PIN_V2, 0, -rows[i].error);
		refused_by(memory, SIZE, "driver", rows[i].error, rows[i].says);
		fake_nvidia_fail((uint32_t)GDRDRV_PIN_V2, 0, 0);
		assert_int_equal(state_now().pins, 0);
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
	assert_int_equal(state_now().mapped, 1); /* they share it */
	assert_int_equal(wh_window_close(w[0]), 0);
	use(w[1], memory + 5);
	assert_int_equal(wh_window_close(w[2]), 0);
	assert_int_equal(wh_window_close(w[1]), 0);
	use(w[3], memory + SIZE / 2);
	assert_int_equal(wh_window_close(w[3]), 0);
	assert_int_equal(state_now().mapped, 0);
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
	refused_by(memory, SIZE, NULL, EACCES, ": rm: /dev/nvidiactl: open: Permission denied");
	assert_non_null(strstr(wh_error_text(), "; driver: /dev/gdrdrv: open"));
	window = open_window(memory, SIZE, "driver,dmabuf,rm,staged");
	info = info_of(window);
	assert_string_equal(info.backend, "staged");
	assert_null(info.pointer);
	assert_int_equal(info.mapping, WH_WINDOW_STAGED);
	assert_non_null(strstr(info.said, "rm: /dev/nvidiactl: open: Permission denied"));
	use(window, memory);
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
		refused_by(memory, 1, orders[i], EINVAL, "driver, dmabuf, rm, rm-watch or staged");
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
	refused_by((uintptr_t)stack, sizeof(stack), NULL, EFAULT, "is not GPU memory");
	refused_by((uintptr_t)pinned, 8, NULL, EFAULT, "is not GPU memory");
	refused_by(freed, 8, NULL, EFAULT, "freed");
	refused_by(memory, SIZE + 1, NULL, EFAULT, "0x");
	refused_by(memory, SIZE_MAX, NULL, EINVAL, "no range of memory");
	refused_by(UINT64_MAX - 8, 8, NULL, EINVAL, "no range of memory");
	refused_by(managed, 8, NULL, EOPNOTSUPP, "needs no window");
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
	assert_int_equal(wh_window_close(NULL), -EINVAL);
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
	use(window, memory);
	assert_int_equal(wh_window_close(window), 0);
}

/* ---- the NVIDIA driver fails ----------------------------------------------------------------- */

static void rm__each_step_fails(void **state)
{
	static const struct {
		uint32_t what;
		int status, error;
		const char *says;
	} rows[] = {
		{ FAKE_NVIDIA_OPEN, -ENOENT, ENOENT, "is the NVIDIA driver loaded" },
		{ RM_ESCAPE_ALLOC, RM_INSUFFICIENT_PERMISSIONS, EPERM, "RM_ALLOC of a client" },
		{ RM_ESCAPE_ALLOC, -EINVAL, EINVAL, "ioctl 0x" },
		{ RM_ESCAPE_CARD_INFO, -EFAULT, EFAULT, "CARD_INFO" },
		{ FAKE_NVIDIA_CONTROL(RM_CONTROL_GPU_ID_INFO), RM_INVALID_ARGUMENT, EINVAL,
		  "GPU_GET_ID_INFO_V2: NV_ERR_INVALID_ARGUMENT (0x1f)" },
		{ RM_ESCAPE_REGISTER_FD, -EINVAL, EINVAL, "REGISTER_FD" },
		{ RM_ESCAPE_DUP_OBJECT, RM_INSUFFICIENT_PERMISSIONS, EPERM,
		  "RM_DUP_OBJECT: NV_ERR_INSUFFICIENT_PERMISSIONS (0x1b); confidential" },
		{ RM_ESCAPE_DUP_OBJECT, 0x7777, EIO, "status 0x7777" },
		{ RM_ESCAPE_MAP_MEMORY, RM_NO_MEMORY, ENOMEM, "BAR1 may be full" },
		{ FAKE_NVIDIA_MMAP, -ENOMEM, ENOMEM, "mmap of" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct fake_nvidia left;

		fake_nvidia_fail(rows[i].what, 0, rows[i].status);
		refused_by(memory, SIZE, "rm", rows[i].error, rows[i].says);
		fake_nvidia_fail(rows[i].what, 0, 0);
		left = state_now();
		assert_int_equal(left.objects, 0);
		assert_int_equal(left.mapped, 0);
	}
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm")), 0);
}

static void rm__cuda_fails(void **state)
{
	(void)state;
	assert_int_equal(cu.fail_call("cuIpcGetMemHandle", 1, CUDA_NOT_SUPPORTED), 0);
	refused_by(memory, SIZE, "rm", EOPNOTSUPP, "cuIpcGetMemHandle");
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm")), 0);
}

/* Nothing is duplicated if the handle's numbers cannot be right. */
static void rm__handle_of_another_layout(void **state)
{
	static const struct {
		int layout;
		const char *says;
	} rows[] = {
		{ FAKE_IPC_OTHER_PROCESS, "unknown layout (process" },
		{ FAKE_IPC_SHORT_OBJECT, "unknown layout (end" },
	};
	struct fake_nvidia before = state_now();

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		cu.ipc_layout(rows[i].layout);
		refused_by(memory, SIZE, "rm", EOPNOTSUPP, rows[i].says);
		assert_int_equal(state_now().asked, before.asked);
	}
	cu.ipc_layout(FAKE_IPC_OTHER_OBJECT);
	refused_by(memory, SIZE, "rm", EINVAL, "RM_DUP_OBJECT: NV_ERR_INVALID_OBJECT_HANDLE");
	cu.ipc_layout(FAKE_IPC_TRUE);
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm")), 0);
}

/* A handle with another offset: the trial detects it before it writes to any memory. */
static void rm__unknown_version_of_another_layout(void **state)
{
	static const int layouts[] = { FAKE_IPC_OTHER_OFFSET, FAKE_IPC_OTHER_PROCESS,
				       FAKE_IPC_OTHER_OBJECT, FAKE_IPC_SHORT_OBJECT };

	(void)state;
	fake_nvidia_version("999.42");
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
		cu.ipc_layout(layouts[i]);
		refused_by(memory, SIZE, "rm",
			   layouts[i] == FAKE_IPC_OTHER_OBJECT ? EINVAL : EOPNOTSUPP,
			   "999.42, not seen working before, failed a trial");
		assert_int_equal(state_now().objects, 0);
	}
	cu.ipc_layout(FAKE_IPC_TRUE);
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm")), 0);
}

/* libcuda's table is changed only if the setting names rm-watch; otherwise the module is not even
 * loaded, and CUDA gets no call that would have to be watched. */
static void rm__watches_nothing(void **state)
{
	uint64_t exports = cu.calls("cuMemGetHandleForAddressRange");

	(void)state;
	assert_int_equal(wh_window_close(open_window(memory, SIZE, NULL)), 0);
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm")), 0);
	fake_nvidia_fail(RM_ESCAPE_DUP_OBJECT, 0, RM_NOT_SUPPORTED);
	refused_by(memory, SIZE, "driver,dmabuf,rm", EOPNOTSUPP, "RM_DUP_OBJECT");
	fake_nvidia_fail(RM_ESCAPE_DUP_OBJECT, 0, 0);
	assert_int_equal(cu.calls("cuMemGetHandleForAddressRange"), exports);
	assert_null(dlopen("libwherry-rm-watch.so.0", RTLD_NOW | RTLD_NOLOAD));
}

static void watch__cuda_fails(void **state)
{
	(void)state;
	/* It fails before its request: the module has seen nothing. */
	assert_int_equal(cu.fail_call("cuMemGetHandleForAddressRange", 1, CUDA_NOT_SUPPORTED), 0);
	refused_by(memory, SIZE, "rm-watch", EOPNOTSUPP, "cuMemGetHandleForAddressRange");
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
}

/* A view is shared with requests that name its backend in full. */
static void watch__is_not_rm(void **state)
{
	struct wh_window *watched = open_window(memory, SIZE, "rm-watch");
	struct wh_window *other = open_window(memory, SIZE, "rm");
	struct wh_window_info info = { .size = sizeof(info) };

	(void)state;
	assert_int_equal(wh_window_info(other, &info), 0);
	assert_string_equal(info.backend, "rm");
	assert_int_equal(wh_window_info(watched, &info), 0);
	assert_string_equal(info.backend, "rm-watch");
	assert_int_equal(wh_window_close(watched), 0);
	assert_int_equal(wh_window_close(other), 0);
}

static void rm__unknown_version_is_tried(void **state)
{
	struct wh_window *window;
	struct fake_nvidia before = state_now();

	(void)state;
	fake_nvidia_version("999.42");
	window = open_window(memory, SIZE, "rm");
	assert_int_equal(state_now().duplicated - before.duplicated, 2);
	use(window, memory);
	assert_int_equal(wh_window_close(window), 0);
	window = open_window(memory, SIZE, "rm");
	assert_int_equal(state_now().duplicated - before.duplicated, 3); /* tried once */
	assert_int_equal(wh_window_close(window), 0);
}

static void rm__unknown_version_that_lies(void **state)
{
	(void)state;
	fake_nvidia_version("999.42");
	fake_nvidia_fail(FAKE_NVIDIA_WRONG, 0, 1);
	refused_by(memory, SIZE, "rm", EOPNOTSUPP, "999.42, not seen working before, failed");
	assert_int_equal(((unsigned char *)cu.alias(memory))[0], 0x11);
	assert_int_equal(state_now().objects, 0);
	fake_nvidia_fail(FAKE_NVIDIA_WRONG, 0, 0);
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm")), 0);
}

/* Memory that CUDA exports as a descriptor. */
static uint64_t map_exportable(size_t size)
{
	const struct wh_cuda_properties properties = { .type = CUDA_ALLOCATION_PINNED,
						       .handle_types = CUDA_HANDLE_FD,
						       .location = { CUDA_LOCATION_DEVICE, 0 } };
	const struct wh_cuda_access access = { { CUDA_LOCATION_DEVICE, 0 }, 3 };
	uint64_t address, part;

	assert_int_equal(cu.reserve(&address, size, 0, 0, 0), 0);
	assert_int_equal(cu.create(&part, size, &properties, 0), 0);
	assert_int_equal(cu.map(address, size, 0, part, 0), 0);
	assert_int_equal(cu.access(address, size, &access, 1), 0);
	return address;
}

static void rm__import(void **state)
{
	const size_t size = 2 << 20;
	uint64_t address = map_exportable(size), created = cu.calls("cuMemCreate");
	struct fake_nvidia before = state_now();
	struct wh_window *window = open_window(address + 99999, 99999, "rm");

	(void)state;
	assert_int_equal(state_now().imported - before.imported, 1);
	assert_int_equal(state_now().asked, before.asked);
	use(window, address + 99999);
	assert_int_equal(wh_window_close(window), 0);
	/* The descriptor that stays open to make exports fast is created once. */
	assert_int_equal(wh_window_close(open_window(address, size, "rm")), 0);
	assert_int_equal(cu.calls("cuMemCreate"), created + 1);
	fake_nvidia_fail(FAKE_NVIDIA_CONTROL(RM_CONTROL_IMPORT_OBJECT), 0, RM_NO_MEMORY);
	refused_by(address, size, "rm", ENOMEM, "IMPORT_OBJECT_FROM_FD: NV_ERR_NO_MEMORY");
	fake_nvidia_fail(FAKE_NVIDIA_CONTROL(RM_CONTROL_IMPORT_OBJECT), 0, 0);
}

static void rm__import_of_an_unknown_version(void **state)
{
	const size_t size = 2 << 20;
	uint64_t address = map_exportable(size);
	struct fake_nvidia before = state_now();
	struct wh_window *window;

	(void)state;
	fake_nvidia_version("999.42");
	window = open_window(address, size, "rm");
	assert_int_equal(state_now().imported - before.imported, 2); /* tried once */
	use(window, address);
	assert_int_equal(wh_window_close(window), 0);
}

/* ---- libcuda's slot -------------------------------------------------------------------------- */

/* Where libcuda keeps the address of ioctl(). */
static uintptr_t *slot(void)
{
	const struct link_map *map;
	const ElfW(Rela) *table = NULL;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	size_t bytes = 0;

	assert_int_equal(dlinfo(cu.library, RTLD_DI_LINKMAP, &map), 0);
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag; d++) {
		table = d->d_tag == DT_JMPREL ? (const void *)d->d_un.d_ptr : table;
		bytes = d->d_tag == DT_PLTRELSZ ? d->d_un.d_val : bytes;
		symbols = d->d_tag == DT_SYMTAB ? (const void *)d->d_un.d_ptr : symbols;
		names = d->d_tag == DT_STRTAB ? (const void *)d->d_un.d_ptr : names;
	}
	for (size_t i = 0; i < bytes / sizeof(*table); i++) {
		if (!strcmp(names + symbols[ELF64_R_SYM(table[i].r_info)].st_name, "ioctl"))
			return (uintptr_t *)(map->l_addr + table[i].r_offset);
	}
	fail();
	return NULL;
}

static _Atomic unsigned tool_calls;

static int tool(int fd, unsigned long request, void *arg)
{
	tool_calls++;
	return ioctl(fd, request, arg);
}

static void slot__is_put_back(void **state)
{
	uintptr_t *at = slot(), before;

	(void)state;
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
	before = *at;
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
	assert_int_equal(*at, before);
	fake_nvidia_fail(RM_ESCAPE_DUP_OBJECT, 0, RM_NOT_SUPPORTED);
	refused_by(memory, SIZE, "rm-watch", EOPNOTSUPP, "RM_DUP_OBJECT");
	fake_nvidia_fail(RM_ESCAPE_DUP_OBJECT, 0, 0);
	assert_int_equal(*at, before);
}

static void slot__of_a_tool_is_respected(void **state)
{
	uintptr_t *at = slot(), before = *at;
	unsigned calls;

	(void)state;
	*at = (uintptr_t)tool;
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
	calls = tool_calls;
	assert_true(calls > 0);
	assert_int_equal(*at, (uintptr_t)tool);
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
	assert_true(tool_calls > calls);
	*at = before;
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
}

static _Atomic bool stop;

/* Another thread exports memory all the time. */
static void *noise(void *arg)
{
	void *context;
	uint64_t address;

	(void)arg;
	if (cu.retain(&context, 0) || cu.set_current(context) || cu.alloc(&address, SIZE))
		return "no memory";
	memset(cu.alias(address), 0x77, SIZE);
	while (!stop) {
		int fd = -1;

		if (!cu.export_range(&fd, address, SIZE, 1, 0))
			close(fd);
	}
	cu.free(address);
	return NULL;
}

static void slot__other_threads_go_on(void **state)
{
	pthread_t threads[2];
	void *why;

	(void)state;
	stop = false;
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, noise, NULL), 0);
	for (int i = 0; i < 100; i++) {
		struct wh_window *window = open_window(memory, SIZE, "rm-watch");

		use(window, memory);
		assert_int_equal(wh_window_close(window), 0);
	}
	stop = true;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], &why);
		assert_null(why);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
	const struct CMUnitTest tests[] = {
		TEST(rm__watches_nothing), /* before what opens the module, which stays */
		TEST(open__by_default),
		TEST(open__driver),
		TEST(driver__pin_fails),
		TEST(open__several_in_any_order),
		TEST(copy__long_reads_by_engine),
		TEST(copy__memory_freed_and_address_reused),
		TEST(staged__only_if_asked_for),
		TEST(open__arguments),
		TEST(open__gpus_switched_off),
		TEST(open__not_such_memory),
		TEST(open__another_mapping),
		TEST(copy__out_of_bounds),
		TEST(engine__closes_after_its_windows),
		TEST(fork__child_has_none),
		TEST(rm__each_step_fails),
		TEST(rm__cuda_fails),
		TEST(rm__unknown_version_is_tried),
		TEST(rm__unknown_version_that_lies),
		TEST(rm__handle_of_another_layout),
		TEST(rm__unknown_version_of_another_layout),
		TEST(rm__import),
		TEST(rm__import_of_an_unknown_version),
		TEST(watch__cuda_fails),
		TEST(watch__is_not_rm),
		TEST(slot__is_put_back),
		TEST(slot__of_a_tool_is_respected),
		TEST(slot__other_threads_go_on),
	};

	open_cuda();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
