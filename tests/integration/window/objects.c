/* SPDX-License-Identifier: Apache-2.0 */
/* objects.c: windows onto memory that another process shares as objects of its kernel driver
 *
 * The owner's side, the importer's side, and what an importer must check. Both are this process,
 * each with its own struct wh_windows. */
#include "../../unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <wherry/error.h>

#include "nvidia-state.h"
#include "platform/rm-abi.h"
#include "window/view.h"

#define SIZE ((size_t)4 << 20)
#define SKIP ((size_t)WH_WINDOW_PAGE * 3)

static struct wh_cuda *cuda;
static struct wh_windows *owner, *importer;
static struct wh_cuda_scope scope;
static uint64_t memory; /* of the owner; begins a GPU page */

static int objects_begin(void **state)
{
	(void)state;
	fake_nvidia_version("580.159.04");
	assert_int_equal(wh_cuda_open(NULL, &cuda), 0);
	assert_int_equal(wh_cuda_ready(cuda), 0);
	assert_int_equal(wh_cuda_enter(cuda, &cuda->devices[0], &scope), 0);
	assert_int_equal(cuda->cuMemAlloc(&memory, SIZE), 0);
	assert_int_equal(memory % WH_WINDOW_PAGE, 0);
	assert_int_equal(wh_windows_new(cuda, &owner), 0);
	assert_int_equal(wh_windows_new(cuda, &importer), 0);
	return 0;
}

static int objects_end(void **state)
{
	(void)state;
	fake_nvidia_fail(RM_ESCAPE_DUP_OBJECT, 0, 0);
	wh_windows_free(importer);
	wh_windows_free(owner);
	cuda->cuMemFree(memory);
	wh_cuda_leave(&scope);
	wh_cuda_close(cuda);
	want_nvidia_clean();
	return 0;
}

/* Open the importer's view of [at, at + length), with these objects only. */
static int open_view(uint64_t at, uint64_t length, const struct wh_view_object *objects,
		     unsigned count, struct wh_view **out)
{
	struct wh_view_request request = { .address = at,
					   .length = length,
					   .order = "rm",
					   .foreign = true,
					   .objects = objects,
					   .object_count = count,
					   .private = true,
					   .map = true };
	unsigned asked = nvidia_state().asked;
	int error = wh_view_open(importer, &request, out);

	/* An importer never has an object duplicated, whatever the owner sends. */
	assert_int_equal(nvidia_state().asked, asked);
	return error;
}

/* Bytes written through the view appear in the memory at `at`, as CUDA sees it, and the reverse. */
static void view_round_trip(const struct wh_view *view, uint64_t at)
{
	unsigned char sent[300], got[sizeof(sent)];

	for (size_t i = 0; i < sizeof(sent); i++)
		sent[i] = (unsigned char)(i * 7 + at);
	wh_copy_to(view->copy, wh_view_at(view, at), sent, sizeof(sent));
	assert_int_equal(wh_windows_get(owner, view->device, got, at, sizeof(got)), 0);
	assert_memory_equal(sent, got, sizeof(sent));
	memset(sent, 0x5a, sizeof(sent));
	assert_int_equal(wh_windows_put(owner, view->device, at, sent, sizeof(sent)), 0);
	wh_copy_from(view->copy, got, wh_view_at(view, at), sizeof(got));
	assert_memory_equal(sent, got, sizeof(sent));
}

static void object__round_trip(void **state)
{
	static const uint64_t skips[] = { 0, 1, SKIP, SKIP + 4097 };
	struct wh_view_object object;
	struct wh_view *view;

	(void)state;
	for (size_t i = 0; i < sizeof(skips) / sizeof(*skips); i++) {
		uint64_t at = memory + skips[i], length = SIZE / 2;

		assert_int_equal(wh_windows_export(owner, at, length, &object), 0);
		/* The owner keeps the descriptor only. */
		assert_int_equal(nvidia_state().objects, 0);
		assert_int_equal(open_view(at, length, &object, 1, &view), 0);
		close(object.fd);
		view_round_trip(view, at);
		view_round_trip(view, at + length - 300);
		wh_view_close(view);
	}
	assert_true(wh_windows_imports(importer, "driver,rm"));
	assert_false(wh_windows_imports(importer, "driver,dmabuf"));
}

static void want_view_refused(int error, const char *text, uint64_t at, uint64_t length,
			      const struct wh_view_object *objects, unsigned count)
{
	struct wh_view *view = NULL;

	assert_int_equal(open_view(at, length, objects, count, &view), -error);
	if (!strstr(wh_error_text(), text))
		fail_msg("no \"%s\" in \"%s\"", text, wh_error_text());
	assert_null(view);
	assert_int_equal(nvidia_state().objects, 0);
	assert_int_equal(nvidia_state().mapped, 0);
}

/* Whatever an owner sends, only whole pages of the object that it has sent are mapped. */
static void object__lies(void **state)
{
	struct wh_view_object object, lie[2];
	int other = memfd_create("other", MFD_CLOEXEC),
	    null = open("/dev/null", O_RDWR | O_CLOEXEC);

	(void)state;
	assert_true(other >= 0 && null >= 0);
	assert_int_equal(ftruncate(other, (off_t)SIZE), 0);
	assert_int_equal(wh_windows_export(owner, memory, SIZE, &object), 0);
	/* A descriptor of something other than GPU memory, and none at all. */
	lie[0] = (struct wh_view_object){ other, 0 };
	want_view_refused(EINVAL, "IMPORT_OBJECT_FROM_FD: NV_ERR_INVALID_OBJECT", memory, SIZE, lie,
			  1);
	lie[0].fd = null;
	want_view_refused(EINVAL, "IMPORT_OBJECT_FROM_FD: NV_ERR_INVALID_OBJECT", memory, SIZE, lie,
			  1);
	lie[0].fd = -1;
	want_view_refused(EINVAL, "IMPORT_OBJECT_FROM_FD: NV_ERR_INVALID_OBJECT", memory, SIZE, lie,
			  1);
	/* A range past the end of the object, and one that overflows. */
	lie[0] = (struct wh_view_object){ object.fd, object.offset + (UINT64_C(1) << 40) };
	want_view_refused(EINVAL, "INVALID_LIMIT", memory, SIZE, lie, 1);
	lie[0].offset = UINT64_MAX - WH_WINDOW_PAGE + 1;
	want_view_refused(EINVAL, "INVALID_LIMIT", memory, SIZE, lie, 1);
	/* Not whole pages, and a range that begins before the object. */
	lie[0].offset = object.offset + 4096;
	want_view_refused(EOPNOTSUPP, "only its owner knows", memory, SIZE, lie, 1);
	lie[0].offset = 10;
	want_view_refused(EOPNOTSUPP, "only its owner knows", memory + 11, SIZE / 2, lie, 1);
	/* Another number of objects than parts. */
	lie[0] = lie[1] = object;
	want_view_refused(EOPNOTSUPP, "only its owner knows", memory, SIZE, lie, 2);
	want_view_refused(EOPNOTSUPP, "only its owner knows", memory, SIZE, lie, 0);
	close(object.fd);
	close(other);
	close(null);
}

static void export_refused(int error, const char *text, uint64_t at)
{
	struct wh_view_object object = { -7, 7 };

	assert_int_equal(wh_windows_export(owner, at, 4096, &object), -error);
	if (!strstr(wh_error_text(), text))
		fail_msg("no \"%s\" in \"%s\"", text, wh_error_text());
	assert_int_equal(object.fd, -7);
	assert_int_equal(object.offset, 7);
	assert_int_equal(nvidia_state().objects, 0);
}

static void export__refused(void **state)
{
	int here = 0;

	(void)state;
	export_refused(EOPNOTSUPP, "not this process's memory", (uint64_t)(uintptr_t)&here);
	fake_nvidia_fail(RM_ESCAPE_DUP_OBJECT, 1, RM_NO_MEMORY);
	export_refused(ENOMEM, "RM_DUP_OBJECT: NV_ERR_NO_MEMORY", memory);
	fake_nvidia_fail(FAKE_NVIDIA_CONTROL(RM_CONTROL_EXPORT_OBJECT), 1, RM_INVALID_PARAM_STRUCT);
	export_refused(EOPNOTSUPP, "EXPORT_OBJECT_TO_FD: NV_ERR_INVALID_PARAM_STRUCT", memory);
	fake_nvidia_fail(FAKE_NVIDIA_OPEN, 1, -EMFILE);
	export_refused(EMFILE, "/dev/nvidiactl: open", memory);
}

/* An unknown driver version: nothing is exported on a guess, and nothing is imported before a
 * trial. */
static void unknown__driver(void **state)
{
	struct wh_view_request request = {
		.address = memory, .length = SIZE, .order = "rm", .private = true, .map = true
	};
	struct wh_view_object object;
	struct wh_view *view;

	(void)state;
	fake_nvidia_version("999.42");
	export_refused(EOPNOTSUPP, "999.42 has not been seen working", memory);
	/* A window of the owner's own has passed the trial. */
	assert_int_equal(wh_view_open(owner, &request, &view), 0);
	wh_view_close(view);
	assert_int_equal(wh_windows_export(owner, memory, SIZE, &object), 0);
	assert_int_equal(open_view(memory, SIZE, &object, 1, &view), 0);
	view_round_trip(view, memory);
	wh_view_close(view);
	close(object.fd);
	/* With rm-watch, imported memory is tried with other imported memory. */
	request.foreign = true;
	request.order = "rm-watch";
	assert_int_equal(wh_view_open(importer, &request, &view), 0);
	view_round_trip(view, memory + 5);
	wh_view_close(view);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(object__round_trip, objects_begin, objects_end),
		cmocka_unit_test_setup_teardown(object__lies, objects_begin, objects_end),
		cmocka_unit_test_setup_teardown(export__refused, objects_begin, objects_end),
		cmocka_unit_test_setup_teardown(unknown__driver, objects_begin, objects_end),
	};

	return cmocka_run_group_tests_name("window-objects", tests, NULL, NULL);
}
