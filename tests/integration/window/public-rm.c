/* SPDX-License-Identifier: Apache-2.0 */
/* public-rm.c: public windows by the backends rm and rm-watch, on the fakes
 *
 * A failure of each of the NVIDIA driver's calls, driver versions and handle layouts that are not
 * known, and the slot for ioctl() in libcuda that rm-watch changes for a moment. */
#include "public-fixture.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "platform/rm-abi.h"

/* ---- the NVIDIA driver fails ----------------------------------------------------------------- */

static void rm__each_step_fails(void **state)
{
	static const struct {
		uint32_t what;
		int status, error;
		const char *text;
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
		want_refused(memory, SIZE, "rm", rows[i].error, rows[i].text);
		fake_nvidia_fail(rows[i].what, 0, 0);
		left = nvidia_state();
		assert_int_equal(left.objects, 0);
		assert_int_equal(left.mapped, 0);
	}
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm")), 0);
}

static void rm__cuda_fails(void **state)
{
	(void)state;
	assert_int_equal(cu.fail_call("cuIpcGetMemHandle", 1, CUDA_NOT_SUPPORTED), 0);
	want_refused(memory, SIZE, "rm", EOPNOTSUPP, "cuIpcGetMemHandle");
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm")), 0);
}

/* Nothing is duplicated if the handle's numbers cannot be right. */
static void rm__handle_of_another_layout(void **state)
{
	static const struct {
		int layout;
		const char *text;
	} rows[] = {
		{ FAKE_IPC_OTHER_PROCESS, "unknown layout (process" },
		{ FAKE_IPC_SHORT_OBJECT, "unknown layout (end" },
	};
	struct fake_nvidia before = nvidia_state();

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		cu.ipc_layout(rows[i].layout);
		want_refused(memory, SIZE, "rm", EOPNOTSUPP, rows[i].text);
		assert_int_equal(nvidia_state().asked, before.asked);
	}
	cu.ipc_layout(FAKE_IPC_OTHER_OBJECT);
	want_refused(memory, SIZE, "rm", EINVAL, "RM_DUP_OBJECT: NV_ERR_INVALID_OBJECT_HANDLE");
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
		want_refused(memory, SIZE, "rm",
			     layouts[i] == FAKE_IPC_OTHER_OBJECT ? EINVAL : EOPNOTSUPP,
			     "999.42, not seen working before, failed a trial");
		assert_int_equal(nvidia_state().objects, 0);
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
	want_refused(memory, SIZE, "driver,dmabuf,rm", EOPNOTSUPP, "RM_DUP_OBJECT");
	fake_nvidia_fail(RM_ESCAPE_DUP_OBJECT, 0, 0);
	assert_int_equal(cu.calls("cuMemGetHandleForAddressRange"), exports);
	assert_null(dlopen("libwherry-rm-watch.so.0", RTLD_NOW | RTLD_NOLOAD));
}

static void watch__cuda_fails(void **state)
{
	(void)state;
	/* CUDA fails before it sends its request: the module sees nothing. */
	assert_int_equal(cu.fail_call("cuMemGetHandleForAddressRange", 1, CUDA_NOT_SUPPORTED), 0);
	want_refused(memory, SIZE, "rm-watch", EOPNOTSUPP, "cuMemGetHandleForAddressRange");
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
}

/* Only requests that name exactly this backend share a view of it. */
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
	struct fake_nvidia before = nvidia_state();

	(void)state;
	fake_nvidia_version("999.42");
	window = open_window(memory, SIZE, "rm");
	assert_int_equal(nvidia_state().duplicated - before.duplicated, 2);
	want_usable(window, memory);
	assert_int_equal(wh_window_close(window), 0);
	window = open_window(memory, SIZE, "rm");
	assert_int_equal(nvidia_state().duplicated - before.duplicated, 3); /* tried once */
	assert_int_equal(wh_window_close(window), 0);
}

static void rm__unknown_version_that_lies(void **state)
{
	(void)state;
	fake_nvidia_version("999.42");
	fake_nvidia_fail(FAKE_NVIDIA_WRONG, 0, 1);
	want_refused(memory, SIZE, "rm", EOPNOTSUPP, "999.42, not seen working before, failed");
	assert_int_equal(((unsigned char *)cu.alias(memory))[0], 0x11);
	assert_int_equal(nvidia_state().objects, 0);
	fake_nvidia_fail(FAKE_NVIDIA_WRONG, 0, 0);
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm")), 0);
}

/* Memory that CUDA can export as a descriptor. */
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
	struct fake_nvidia before = nvidia_state();
	struct wh_window *window = open_window(address + 99999, 99999, "rm");

	(void)state;
	assert_int_equal(nvidia_state().imported - before.imported, 1);
	assert_int_equal(nvidia_state().asked, before.asked);
	want_usable(window, address + 99999);
	assert_int_equal(wh_window_close(window), 0);
	/* The descriptor that stays open to make exports fast is created once. */
	assert_int_equal(wh_window_close(open_window(address, size, "rm")), 0);
	assert_int_equal(cu.calls("cuMemCreate"), created + 1);
	fake_nvidia_fail(FAKE_NVIDIA_CONTROL(RM_CONTROL_IMPORT_OBJECT), 0, RM_NO_MEMORY);
	want_refused(address, size, "rm", ENOMEM, "IMPORT_OBJECT_FROM_FD: NV_ERR_NO_MEMORY");
	fake_nvidia_fail(FAKE_NVIDIA_CONTROL(RM_CONTROL_IMPORT_OBJECT), 0, 0);
}

static void rm__import_of_an_unknown_version(void **state)
{
	const size_t size = 2 << 20;
	uint64_t address = map_exportable(size);
	struct fake_nvidia before = nvidia_state();
	struct wh_window *window;

	(void)state;
	fake_nvidia_version("999.42");
	window = open_window(address, size, "rm");
	assert_int_equal(nvidia_state().imported - before.imported, 2); /* tried once */
	want_usable(window, address);
	assert_int_equal(wh_window_close(window), 0);
}

/* ---- libcuda's slot -------------------------------------------------------------------------- */

/* Where libcuda keeps the address of ioctl(). */
static uintptr_t *ioctl_slot(void)
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

static int tool_ioctl(int fd, unsigned long request, void *arg)
{
	tool_calls++;
	return ioctl(fd, request, arg);
}

static void slot__is_put_back(void **state)
{
	uintptr_t *at = ioctl_slot(), before;

	(void)state;
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
	before = *at;
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
	assert_int_equal(*at, before);
	fake_nvidia_fail(RM_ESCAPE_DUP_OBJECT, 0, RM_NOT_SUPPORTED);
	want_refused(memory, SIZE, "rm-watch", EOPNOTSUPP, "RM_DUP_OBJECT");
	fake_nvidia_fail(RM_ESCAPE_DUP_OBJECT, 0, 0);
	assert_int_equal(*at, before);
}

static void slot__of_a_tool_is_respected(void **state)
{
	uintptr_t *at = ioctl_slot(), before = *at;
	unsigned calls;

	(void)state;
	*at = (uintptr_t)tool_ioctl;
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
	calls = tool_calls;
	assert_true(calls > 0);
	assert_int_equal(*at, (uintptr_t)tool_ioctl);
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
	assert_true(tool_calls > calls);
	*at = before;
	assert_int_equal(wh_window_close(open_window(memory, SIZE, "rm-watch")), 0);
}

static _Atomic bool stop;

/* Export memory all the time, in another thread. */
static void *export_all_the_time(void *arg)
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
		assert_int_equal(pthread_create(&threads[i], NULL, export_all_the_time, NULL), 0);
	for (int i = 0; i < 100; i++) {
		struct wh_window *window = open_window(memory, SIZE, "rm-watch");

		want_usable(window, memory);
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
	static const struct CMUnitTest tests[] = {
		PUBLIC_TEST(rm__watches_nothing), /* before the tests that load the module, which
						     stays loaded */
		PUBLIC_TEST(rm__each_step_fails),
		PUBLIC_TEST(rm__cuda_fails),
		PUBLIC_TEST(rm__unknown_version_is_tried),
		PUBLIC_TEST(rm__unknown_version_that_lies),
		PUBLIC_TEST(rm__handle_of_another_layout),
		PUBLIC_TEST(rm__unknown_version_of_another_layout),
		PUBLIC_TEST(rm__import),
		PUBLIC_TEST(rm__import_of_an_unknown_version),
		PUBLIC_TEST(watch__cuda_fails),
		PUBLIC_TEST(watch__is_not_rm),
		PUBLIC_TEST(slot__is_put_back),
		PUBLIC_TEST(slot__of_a_tool_is_respected),
		PUBLIC_TEST(slot__other_threads_go_on),
	};

	public_load();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
