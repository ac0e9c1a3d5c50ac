/* SPDX-License-Identifier: Apache-2.0 */
/* file.c, observer.c, window.c and stream.c: what the public calls refuse before they touch a file,
 * a GPU or a socket, what is made with the first file, and whom the observers' socket answers */
#include "allocation.h"
#include "core-fake.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <wherry/file.h>
#include <wherry/window.h>

#include "core/observer.h"
#include "frozen-clock.h"
#include "telemetry/directory.h"
#include "telemetry/observation.h"

#define START (1000 * WH_SECOND)

static struct wh_engine *one;
static const char *config[8];

/* An engine without threads, with two more settings. */
static int engine_open(const char *setting, const char *another)
{
	const struct wh_engine_options options = {
		.size = sizeof(options),
		.listen = "none",
		.flags = WH_ENGINE_NO_THREADS,
		.config = config,
	};

	config[0] = "cuda=off";
	config[1] = setting;
	config[2] = another;
	one = NULL;
	return wh_engine_open(&options, &one);
}

static void engine_close(void)
{
	assert_int_equal(wh_engine_close(one), 0);
}

/* ---- files --------------------------------------------------------------------------------- */

static int file_new(void)
{
	int fd = memfd_create("unit", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 8192), 0);
	return fd;
}

static void file__arguments(void **state)
{
	const struct wh_region_options writable = {
		.size = sizeof(writable),
		.name = "checkpoint",
		.access = WH_ACCESS_READ | WH_ACCESS_WRITE,
	};
	struct wh_file_options options = { .size = sizeof(options), .region = &writable };
	struct wh_region *region = NULL;
	int fd = file_new();

	(void)state;
	assert_int_equal(engine_open("observe=off", NULL), 0);
	assert_int_equal(wh_file_register(one, NULL, NULL, &region), -EINVAL);
	said("wh_file_register: path is NULL");
	assert_int_equal(wh_file_register_fd(NULL, fd, NULL, &region), -EINVAL);
	said("engine is NULL");
	assert_int_equal(wh_file_register_fd(one, fd, NULL, NULL), -EINVAL);
	said("wh_file_register: out is NULL");
	assert_int_equal(wh_file_register_fd(one, fd, &options, &region), -EACCES);
	said("access WRITE takes WH_FILE_WRITE in options.flags");
	options.size = 4;
	assert_int_equal(wh_file_register_fd(one, fd, &options, &region), -EINVAL);
	/* Until here nothing was made for files. */
	assert_null(wh_engine_file_threads(one));
	options = (struct wh_file_options){ .size = sizeof(options), .flags = WH_FILE_CREATE };
	assert_int_equal(wh_file_register_fd(one, fd, &options, &region), -EINVAL);
	assert_int_equal(wh_file_register_fd(one, -1, NULL, &region), -EBADF);
	assert_int_equal(wh_file_register(one, "/nowhere/at/all", NULL, &region), -ENOENT);
	assert_null(region);
	options = (struct wh_file_options){
		.size = sizeof(options),
		.flags = WH_FILE_WRITE,
		.region = &writable,
	};
	assert_int_equal(wh_file_register_fd(one, fd, &options, &region), 0);
	assert_int_equal(region->entry.kind, WH_MEMORY_FILE);
	assert_int_equal(region->entry.length, 8192);
	assert_int_equal(wh_region_unregister(region), 0);
	close(fd);
	engine_close();
}

/* What reads and writes files is made once, as the settings say. */
static void file__made_with_the_first_one(void **state)
{
	static const struct {
		const char *cold, *writes;
		bool rings, direct, writes_direct;
	} rows[] = {
		{ "file_cold=pread", "file_writes=cached", false, false, false },
		{ "file_cold=ring", "file_writes=direct", true, false, true },
		{ "file_cold=direct", "file_writes=cached", true, true, false },
	};
	int fd = file_new();

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct wh_region *first, *second;
		struct wh_file_threads *threads;

		config[3] = "observe=off";
		assert_int_equal(engine_open(rows[i].cold, rows[i].writes), 0);
		assert_null(wh_engine_file_threads(one));
		assert_int_equal(wh_file_register_fd(one, fd, NULL, &first), 0);
		threads = wh_engine_file_threads(one);
		assert_non_null(threads);
		assert_int_equal(one->memory.file_rings != NULL, rows[i].rings);
		assert_int_equal(one->memory.file_direct, rows[i].direct);
		assert_int_equal(one->memory.file_writes_direct, rows[i].writes_direct);
		assert_int_equal(wh_file_register_fd(one, fd, NULL, &second), 0);
		assert_ptr_equal(wh_engine_file_threads(one), threads);
		assert_int_equal(wh_region_unregister(first), 0);
		assert_int_equal(wh_region_unregister(second), 0);
		engine_close();
	}
	config[3] = NULL;
	close(fd);
}

static int file_register_and_unregister(int fd)
{
	const struct wh_region_options named = { .size = sizeof(named), .name = "checkpoint" };
	const struct wh_file_options options = { .size = sizeof(options), .region = &named };
	struct wh_region *region = NULL;
	int error = wh_file_register_fd(one, fd, &options, &region);

	assert_int_equal(!region, error < 0);
	return region ? wh_region_unregister(region) : error;
}

static void file__no_memory(void **state)
{
	int fd = file_new();

	(void)state;
	assert_int_equal(engine_open("observe=off", NULL), 0);
	assert_int_equal(WITHOUT_MEMORY(3, file_register_and_unregister(fd)), 0);
	engine_close();
	/* Nothing of the first file is left that the engine would free once more. */
	for (unsigned nth = 1; nth < 6; nth++) {
		assert_int_equal(engine_open("observe=off", NULL), 0);
		allocation_fails = nth;
		assert_int_equal(file_register_and_unregister(fd), -ENOMEM);
		engine_close();
	}
	close(fd);
}

/* ---- the socket for observers -------------------------------------------------------------- */

static char folder[64], observe[80];

static void folder_new(void)
{
	snprintf(folder, sizeof(folder), "/tmp/wherry-unit-XXXXXX");
	assert_non_null(mkdtemp(folder));
	snprintf(observe, sizeof(observe), "observe=%s", folder);
}

static void settle(void)
{
	while (wh_engine_progress(one, 0) > 0)
		;
}

static int observer_setup(void **state)
{
	(void)state;
	folder_new();
	frozen_now = START;
	return engine_open(observe, NULL);
}

static int observer_teardown(void **state)
{
	int error = wh_engine_close(one);

	(void)state;
	frozen_now = 0;
	return error || rmdir(folder);
}

static int look(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", wh_engine_observer_path(one));
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	settle();
	return fd;
}

static void ask(int fd, const char *bytes, size_t length)
{
	assert_int_equal(send(fd, bytes, length, MSG_NOSIGNAL), length);
	settle();
}

/* What has come: bytes; 0: the connection is closed; -1: nothing. */
static ssize_t answer(int fd)
{
	static char bytes[1 << 16];

	return recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
}

static void answered(int fd)
{
	assert_true(answer(fd) >= WH_OBSERVED_HEADER);
	assert_int_equal(answer(fd), 0);
	close(fd);
}

static void observer__place(void **state)
{
	char path[160];
	struct stat status;

	(void)state;
	snprintf(path, sizeof(path), "%s/%d-%016llx%s", folder, (int)getpid(),
		 (unsigned long long)wh_engine_epoch(one), WH_OBSERVER_SUFFIX);
	assert_string_equal(wh_engine_observer_path(one), path);
	assert_int_equal(stat(path, &status), 0);
	assert_true(S_ISSOCK(status.st_mode));
	assert_int_equal(status.st_mode & 0777, 0600);
	strcat(path, WH_OBSERVER_NEW);
	assert_int_equal(stat(path, &status), -1);
	assert_string_equal(wh_engine_observer_path(NULL), "");
}

static void observer__request_and_answer(void **state)
{
	int fd = look();

	(void)state;
	ask(fd, WH_OBSERVE_REQUEST, 3);
	assert_int_equal(answer(fd), -1);
	ask(fd, &WH_OBSERVE_REQUEST[3], WH_OBSERVE_REQUEST_SIZE - 3);
	answered(fd);
	/* Any version; who asks for something else learns nothing. */
	fd = look();
	ask(fd, "wherry?\x7f", WH_OBSERVE_REQUEST_SIZE);
	answered(fd);
	fd = look();
	ask(fd, "wherry!\2", WH_OBSERVE_REQUEST_SIZE);
	assert_int_equal(answer(fd), 0);
	close(fd);
	fd = look();
	allocation_fails = 1;
	ask(fd, WH_OBSERVE_REQUEST, WH_OBSERVE_REQUEST_SIZE);
	assert_int_equal(allocation_fails, 0);
	assert_int_equal(answer(fd), 0);
	close(fd);
	/* Who leaves again makes room for others. */
	for (unsigned i = 0; i < 10; i++) {
		fd = look();
		close(fd);
		settle();
	}
	fd = look();
	ask(fd, WH_OBSERVE_REQUEST, WH_OBSERVE_REQUEST_SIZE);
	answered(fd);
}

/* Each has two seconds. */
static void observer__patience(void **state)
{
	int early = look(), late;

	(void)state;
	frozen_now = START + WH_SECOND;
	late = look();
	frozen_now = START + 2 * WH_SECOND - 1;
	settle();
	assert_int_equal(answer(early), -1);
	frozen_now++;
	settle();
	assert_int_equal(answer(early), 0);
	assert_int_equal(answer(late), -1);
	frozen_now = START + 3 * WH_SECOND - 1;
	settle();
	assert_int_equal(answer(late), -1);
	frozen_now++;
	settle();
	assert_int_equal(answer(late), 0);
	close(early);
	close(late);
}

/* Eight at a time; the ninth waits. */
static void observer__too_many(void **state)
{
	int fds[9];

	(void)state;
	for (unsigned i = 0; i < 9; i++)
		fds[i] = look();
	ask(fds[8], WH_OBSERVE_REQUEST, WH_OBSERVE_REQUEST_SIZE);
	assert_int_equal(answer(fds[8]), -1);
	ask(fds[3], WH_OBSERVE_REQUEST, WH_OBSERVE_REQUEST_SIZE);
	answered(fds[3]);
	settle();
	answered(fds[8]);
	for (unsigned i = 0; i < 8; i++)
		if (i != 3) {
			assert_int_equal(answer(fds[i]), -1);
			close(fds[i]);
		}
}

/* A directory that the setting names has to be usable. */
static void observer__directory(void **state)
{
	char path[128];

	(void)state;
	assert_int_equal(engine_open("observe=off", NULL), 0);
	assert_string_equal(wh_engine_observer_path(one), "");
	engine_close();
	folder_new();
	assert_int_equal(chmod(folder, 0777), 0);
	assert_int_equal(engine_open(observe, NULL), -EPERM);
	said(observe);
	said("name a directory of this user that others cannot write in, or off");
	assert_int_equal(chmod(folder, 0700), 0);
	assert_int_equal(engine_open(observe, NULL), 0);
	snprintf(path, sizeof(path), "%s", wh_engine_observer_path(one));
	assert_int_equal(access(path, F_OK), 0);
	engine_close();
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(rmdir(folder), 0);
	assert_int_equal(engine_open(observe, NULL), -ENOENT);
	said(observe);
}

/* ---- windows ------------------------------------------------------------------------------- */

static int window_open(const void *address, size_t length, const struct wh_window_options *options)
{
	struct wh_window *window = NULL;
	int error = wh_window_open(one, address, length, options, &window);

	assert_null(window);
	return error;
}

static void window__arguments(void **state)
{
	struct wh_window_options options = { .size = sizeof(options) };
	struct wh_window *window = NULL;
	struct wh_window_info info = { .size = sizeof(info) };
	char byte = 0;

	(void)state;
	assert_int_equal(engine_open("observe=off", NULL), 0);
	assert_int_equal(wh_window_open(NULL, source, 1, NULL, &window), -EINVAL);
	said("wh_window_open: engine is NULL");
	assert_int_equal(wh_window_open(one, source, 1, NULL, NULL), -EINVAL);
	said("wh_window_open: out is NULL");
	assert_int_equal(window_open(NULL, 1, NULL), -EINVAL);
	said("address is NULL");
	assert_int_equal(window_open(source, 0, NULL), -EINVAL);
	said("length is 0");
	options.reserved = 1;
	assert_int_equal(window_open(source, 1, &options), -EINVAL);
	said("options.reserved is not 0");
	options = (struct wh_window_options){ .size = sizeof(options), .mapping = 4 };
	assert_int_equal(window_open(source, 1, &options), -EINVAL);
	said("options.mapping is 4; at most 3, device");
	options = (struct wh_window_options){ .size = sizeof(options), .backends = "rm,magic" };
	assert_int_equal(window_open(source, 1, &options), -EINVAL);
	said("backends \"rm,magic\": wants driver");
	/* There is no GPU. */
	assert_true(window_open(source, 1, NULL) < 0);
	assert_int_equal(one->window_count, 0);
	assert_int_equal(wh_count_get(&one->statistics.windows_opened), 0);
	engine_close();
	assert_int_equal(wh_window_close(NULL), 0);
	assert_int_equal(wh_window_copy_to(NULL, 0, &byte, 1), -EINVAL);
	said("wh_window_copy_to: window is NULL");
	assert_int_equal(wh_window_copy_from(NULL, 0, &byte, 1), -EINVAL);
	said("wh_window_copy_from: window is NULL");
	assert_int_equal(wh_window_flush(NULL), -EINVAL);
	assert_int_equal(wh_window_info(NULL, &info), -EINVAL);
	said("wh_window_info: window is NULL");
}

/* By the setting, unless the program names backends. */
static void window__off(void **state)
{
	const struct wh_window_options options = { .size = sizeof(options), .backends = "magic" };

	(void)state;
	assert_int_equal(engine_open("observe=off", "window=off"), 0);
	assert_int_equal(window_open(source, 1, NULL), -EOPNOTSUPP);
	said("switched off by the setting window (WHERRY_WINDOW)");
	assert_int_equal(window_open(source, 1, &options), -EINVAL);
	engine_close();
}

/* ---- streams ------------------------------------------------------------------------------- */

/* Without CUDA a batch follows no stream, and can be used as before. */
static void stream__without_cuda(void **state)
{
	const struct wh_stream stream = { .size = sizeof(stream), .device = "cuda:0" };
	struct wh_batch *batch = batch_of(16);

	(void)state;
	wh_cuda_off(engine->cuda, "the test has no GPU");
	assert_int_equal(wh_batch_submit_after(NULL, &stream), -EINVAL);
	said("wh_batch_submit_after: batch is NULL");
	assert_int_equal(wh_batch_make_stream_wait(NULL, &stream), -EINVAL);
	said("wh_batch_make_stream_wait: batch is NULL");
	assert_int_equal(wh_batch_submit_after(batch, NULL), -EINVAL);
	said("stream is NULL");
	assert_int_equal(wh_batch_submit_after(batch, &stream), -ENODEV);
	said("the test has no GPU");
	assert_int_equal(wh_batch_make_stream_wait(batch, &stream), -ENODEV);
	assert_null(atomic_load(&batch->dependency));
	assert_int_equal(RDMA->submitted, 0);
	assert_int_equal(wh_batch_submit(batch), 0);
	assert_int_equal(wh_batch_submit_after(batch, &stream), -EBUSY);
	said("the batch is running");
	/* A stream may wait for one that runs. */
	assert_int_equal(wh_batch_make_stream_wait(batch, &stream), -ENODEV);
	fake_end(RDMA, 0);
	assert_int_equal(wh_batch_status(batch), 0);
	drop_batch(batch);
}

#define OBSERVER_TEST(function)                                                                    \
	cmocka_unit_test_setup_teardown(function, observer_setup, observer_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(file__arguments),
		cmocka_unit_test(file__made_with_the_first_one),
		cmocka_unit_test(file__no_memory),
		OBSERVER_TEST(observer__place),
		OBSERVER_TEST(observer__request_and_answer),
		OBSERVER_TEST(observer__patience),
		OBSERVER_TEST(observer__too_many),
		cmocka_unit_test(observer__directory),
		cmocka_unit_test(window__arguments),
		cmocka_unit_test(window__off),
		TEST(stream__without_cuda),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
