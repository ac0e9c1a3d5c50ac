/* SPDX-License-Identifier: Apache-2.0 */
/* gdrapi-map.c: libgdrapi.so.2: mapping, copying, attributes, fork() and threads */
#include "gdrapi-fixture.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/wherry.h>

/* ---- mapping --------------------------------------------------------------------------------- */

static void map__twice_and_not(void **state)
{
	gdr_mh_t mh = pin_buffer(memory, SIZE);
	void *va = (void *)1, *got;
	char byte = 0;

	(void)state;
	assert_int_equal(api.gdr_unmap(gdr, mh, &byte, SIZE), EINVAL);
	assert_int_equal(api.gdr_map(gdr, mh, &va, 0), EINVAL);
	assert_int_equal(api.gdr_map(gdr, mh, &va, 2 * SIZE), EINVAL);
	assert_int_equal(api.gdr_map(gdr, mh, NULL, SIZE), EINVAL);
	assert_int_equal(api.gdr_map_v2(gdr, mh, &va, SIZE, 4), EINVAL);
	assert_int_equal(api.gdr_map_v2(gdr, mh, &va, SIZE, -1), EINVAL);
	assert_ptr_equal(va, (void *)1);
	got = map_buffer(mh, SIZE);
	assert_int_equal(api.gdr_map(gdr, mh, &va, SIZE), EAGAIN);
	assert_int_equal(api.gdr_unmap(gdr, mh, (char *)got + 1, SIZE), EINVAL);
	assert_int_equal(api.gdr_unmap(gdr, mh, got, SIZE), 0);
	assert_int_equal(api.gdr_unmap(gdr, mh, got, SIZE), EINVAL);
	/* Map it again. */
	got = map_buffer(mh, 64);
	assert_int_equal(api.gdr_copy_to_mapping(mh, got, "again", 6), 0);
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0); /* while it is mapped */
	assert_int_equal(api.gdr_copy_to_mapping(mh, got, "again", 6), EINVAL);
}

static void types__names(void **state)
{
	static const char *const names[] = { "None", "Write Combining", "Caching", "Device" };
	const char *name;

	(void)state;
	for (int type = 0; type < GDR_MAPPING_TYPE_MAX; type++) {
		assert_int_equal(api.gdr_get_mapping_type_string(type, &name), 0);
		assert_string_equal(name, names[type]);
	}
	name = "unchanged";
	assert_int_equal(api.gdr_get_mapping_type_string(GDR_MAPPING_TYPE_MAX, &name), EINVAL);
	assert_int_equal(api.gdr_get_mapping_type_string(-1, &name), EINVAL);
	assert_int_equal(api.gdr_get_mapping_type_string(1, NULL), EINVAL);
	assert_string_equal(name, "unchanged");
}

static void map__unaligned_is_refused(void **state)
{
	static const size_t shifts[] = { 1, 8, 512, 4096, 0x8000, 0xffff, 0x10001 };

	(void)state;
	for (size_t s = 0; s < sizeof(shifts) / sizeof(shifts[0]); s++) {
		gdr_mh_t mh = pin_buffer(memory + shifts[s], 8);
		void *va = &mh;

		assert_int_equal(api.gdr_map(gdr, mh, &va, 8), EINVAL);
		assert_int_equal(api.gdr_map_v2(gdr, mh, &va, 8, GDR_MAP_FLAG_REQ_WC_MAPPING),
				 EINVAL);
		assert_ptr_equal(va, &mh);
		assert_int_equal(buffer_info(mh).mapped, 0);
		assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
	}
	for (uint64_t at = 0; at < SIZE; at += PAGE) {
		gdr_mh_t mh = pin_buffer(memory + at, 8);
		char *va = map_buffer(mh, 8);

		va[5] = 'b'; /* as a program that stores without the library */
		assert_int_equal(*cu.alias(memory + at + 5), 'b');
		assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
	}
}

static void map__types(void **state)
{
	gdr_mh_t mh = pin_buffer(memory, SIZE);
	gdr_info_v2_t i = buffer_info(mh);
	void *va;

	(void)state;
	assert_int_equal(i.mapped, 0);
	assert_int_equal(i.mapping_type, GDR_MAPPING_TYPE_NONE);
	assert_int_equal(api.gdr_map_v2(gdr, mh, &va, SIZE, GDR_MAP_FLAG_REQ_CACHE_MAPPING),
			 EOPNOTSUPP);
	assert_int_equal(api.gdr_map_v2(gdr, mh, &va, SIZE, GDR_MAP_FLAG_REQ_DEVICE_MAPPING),
			 EOPNOTSUPP);
	assert_int_equal(api.gdr_map_v2(gdr, mh, &va, SIZE, GDR_MAP_FLAG_REQ_WC_MAPPING), 0);
	i = buffer_info(mh);
	assert_int_equal(i.mapped, 1);
	assert_int_equal(i.wc_mapping, 1);
	assert_int_equal(i.mapping_type, GDR_MAPPING_TYPE_WC);
	assert_int_equal(i.tm_cycles, strncmp(backend, "driver", 6) ? 0 : 4711);
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
}

/* Programs compiled against old headers pass 40 bytes. */
static void info__of_old(void **state)
{
	struct {
		struct info_v1 info;
		unsigned char guard[16];
	} old;
	gdr_mh_t mh = pin_buffer(memory + PAGE, 64);

	(void)state;
	memset(&old, 0x5a, sizeof(old));
	map_buffer(mh, 64);
	assert_int_equal(api.gdr_get_info(gdr, mh, &old.info), 0);
	assert_int_equal(sizeof(old.info), 40);
	assert_int_equal(old.info.va, memory + PAGE);
	assert_int_equal(old.info.mapped_size % 65536, 0);
	assert_int_equal(old.info.mapped, 1);
	assert_int_equal(old.info.wc_mapping, 1);
	for (size_t i = 0; i < sizeof(old.guard); i++)
		assert_int_equal(old.guard[i], 0x5a);
	assert_int_equal(api.gdr_get_info(gdr, mh, NULL), EINVAL);
	assert_int_equal(api.gdr_get_info_v2(gdr, mh, NULL), EINVAL);
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
}

static void map__two_of_the_same(void **state)
{
	gdr_mh_t a = pin_buffer(memory, SIZE), b = pin_buffer(memory, SIZE);
	char *first = map_buffer(a, SIZE), *second = map_buffer(b, SIZE), byte;

	(void)state;
	assert_ptr_not_equal(first, second);
	assert_int_equal(api.gdr_copy_to_mapping(a, first + 1000, "x", 1), 0);
	assert_int_equal(api.gdr_copy_from_mapping(b, &byte, second + 1000, 1), 0);
	assert_int_equal(byte, 'x');
	/* Each handle has its own mapping only. */
	assert_int_equal(api.gdr_copy_to_mapping(a, second, "x", 1), EINVAL);
	assert_int_equal(api.gdr_unpin_buffer(gdr, a), 0);
	assert_int_equal(api.gdr_copy_from_mapping(b, &byte, second + 1000, 1), 0);
	assert_int_equal(api.gdr_unpin_buffer(gdr, b), 0);
}

/* ---- copying --------------------------------------------------------------------------------- */

static void copy__bounds(void **state)
{
	gdr_mh_t mh = pin_buffer(memory, SIZE);
	char *va = map_buffer(mh, SIZE), byte = 0;
	size_t length = buffer_info(mh).mapped_size;

	(void)state;
	assert_int_equal(api.gdr_copy_to_mapping(mh, NULL, NULL, 0), 0);
	assert_int_equal(api.gdr_copy_from_mapping((gdr_mh_t){ 0 }, NULL, NULL, 0), 0);
	assert_int_equal(api.gdr_copy_to_mapping(mh, va + length - 1, &byte, 1), 0);
	assert_int_equal(api.gdr_copy_to_mapping(mh, va + length, &byte, 1), EINVAL);
	assert_int_equal(api.gdr_copy_to_mapping(mh, va - 1, &byte, 1), EINVAL);
	assert_int_equal(api.gdr_copy_to_mapping(mh, va + 1, &byte, SIZE_MAX), EINVAL);
	assert_int_equal(api.gdr_copy_from_mapping(mh, &byte, va + length - 1, 2), EINVAL);
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
}

static void copy__every_offset(void **state)
{
	gdr_mh_t mh = pin_buffer(memory, SIZE);
	char *va = map_buffer(mh, SIZE), *mine = va + (memory - buffer_info(mh).va);
	unsigned char sent[300], got[300];

	(void)state;
	for (size_t i = 0; i < sizeof(sent); i++)
		sent[i] = (unsigned char)(i * 7);
	for (size_t at = 0; at < 300; at++) {
		for (size_t length = 1; length < 300; length += 1 + at % 7) {
			assert_int_equal(api.gdr_copy_to_mapping(mh, mine + at, sent, length), 0);
			assert_memory_equal(cu.alias(memory + at), sent, length);
			assert_int_equal(api.gdr_copy_from_mapping(mh, got, mine + at, length), 0);
			assert_memory_equal(got, sent, length);
		}
	}
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
}

/* ---- what holds, and what ends --------------------------------------------------------------- */

static void attribute__truth(void **state)
{
	bool old = backend_is("driver-old"), dmabuf = backend_is("dmabuf");
	int value = -1;

	(void)state;
	assert_int_equal(api.gdr_get_attribute(gdr, GDR_ATTR_USE_PERSISTENT_MAPPING, &value), 0);
	assert_int_equal(value, !old);
	assert_int_equal(api.gdr_get_attribute(gdr, GDR_ATTR_USING_DMA_BUF_MMAP, &value), 0);
	assert_int_equal(value, dmabuf);
	assert_int_equal(api.gdr_get_attribute(gdr, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE, &value),
			 0);
	assert_true(value == 0 || value == 1);
	assert_int_equal(api.gdr_get_attribute(gdr, 0, &value), EINVAL);
	assert_int_equal(api.gdr_get_attribute(gdr, GDR_ATTR_MAX, &value), EINVAL);
	assert_int_equal(api.gdr_get_attribute(gdr, -1, &value), EINVAL);
	assert_int_equal(api.gdr_get_attribute(gdr, 1, NULL), EINVAL);
	assert_int_equal(api.gdr_get_attribute(NULL, 1, &value), EINVAL);
}

static void freed__flag(void **state)
{
	gdr_mh_t mh = pin_buffer(memory, SIZE);
	int flag = 7;

	(void)state;
	map_buffer(mh, SIZE);
	assert_int_equal(api.gdr_get_callback_flag(gdr, mh, &flag), 0);
	assert_int_equal(flag, 0);
	assert_int_equal(api.gdr_get_callback_flag(gdr, mh, NULL), EINVAL);
	for (uint64_t handle = 1; handle < 100000 && !strncmp(backend, "driver", 6); handle++)
		fake_nvidia_revoke(handle);
	assert_int_equal(api.gdr_get_callback_flag(gdr, mh, &flag), 0);
	assert_int_equal(flag, !strncmp(backend, "driver", 6));
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
}

static void fork__child_has_none(void **state)
{
	gdr_mh_t mh = pin_buffer(memory, SIZE), unmapped = pin_buffer(memory, SIZE), other;
	volatile char *va = map_buffer(mh, SIZE);
	int status;
	pid_t child = fork();

	(void)state;
	assert_true(child >= 0);
	if (!child) {
		void *at;
		bool good = api.gdr_pin_buffer(gdr, memory, 64, 0, 0, &other) == EACCES &&
			    api.gdr_map(gdr, unmapped, &at, SIZE) == EACCES;

		signal(SIGSEGV, SIG_DFL);
		if (good)
			*va = 1;
		_exit(good ? 42 : 41);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) || (WEXITSTATUS(status) && WEXITSTATUS(status) < 41));
	assert_int_equal(api.gdr_copy_to_mapping(mh, (void *)(uintptr_t)va, "still", 6), 0);
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
	assert_int_equal(api.gdr_unpin_buffer(gdr, unmapped), 0);
}

/* A child closes its copy of the handle without touching the parent's mappings. */
static void fork__child_closes(void **state)
{
	gdr_mh_t mh = pin_buffer(memory, SIZE);
	char *va = map_buffer(mh, SIZE);
	int status;
	pid_t child = fork();

	(void)state;
	if (!child)
		_exit(api.gdr_close(gdr) ? 41 : 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : 99, 0);
	assert_int_equal(api.gdr_copy_to_mapping(mh, va, "still", 6), 0);
	assert_string_equal(cu.alias(buffer_info(mh).va), "still");
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *pin_and_unpin(void *arg)
{
	unsigned at = (unsigned)(uintptr_t)arg;

	for (unsigned i = 0; i < 50; i++) {
		uint64_t address = memory + at * PAGE, value = (uint64_t)at << 32 | i, got = 0;
		gdr_info_v2_t about;
		gdr_mh_t mh;
		void *va;

		if (api.gdr_pin_buffer(gdr, address, 4096, 0, 0, &mh) ||
		    api.gdr_get_info_v2(gdr, mh, &about) || api.gdr_map(gdr, mh, &va, 4096))
			return "pin or map";
		va = (char *)va + (address - about.va);
		if (api.gdr_copy_to_mapping(mh, va, &value, 8) ||
		    api.gdr_copy_from_mapping(mh, &got, va, 8) || got != value)
			return "copy";
		if (api.gdr_unpin_buffer(gdr, mh))
			return "unpin";
	}
	return NULL;
}

/* Meanwhile libwherry uses libcuda's table as well. */
static void *open_and_close(void *arg)
{
	struct wh_engine *engine = arg;

	for (int i = 0; i < 50; i++) {
		struct wh_window_options options = { .size = sizeof(options), .backends = "rm" };
		struct wh_window *window;

		if (wh_window_open(engine, (void *)(uintptr_t)memory, SIZE, &options, &window) ||
		    wh_window_close(window))
			return (void *)(uintptr_t)wh_error_text();
	}
	return NULL;
}

static void threads__beside_libwherry(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_engine *engine;
	pthread_t threads[5];
	void *why;

	(void)state;
	assert_int_equal(wh_engine_open(&options, &engine), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, pin_and_unpin,
						(void *)(uintptr_t)(i + 1)),
				 0);
	assert_int_equal(pthread_create(&threads[4], NULL, open_and_close, engine), 0);
	for (int i = 0; i < 5; i++) {
		pthread_join(threads[i], &why);
		if (why)
			print_message("%d: %s\n", i, (char *)why);
		assert_null(why);
	}
	assert_int_equal(wh_engine_close(engine), 0);
}

static _Atomic bool stop;

static void *come_and_go(void *arg)
{
	void *context;

	(void)arg;
	if (cu.retain(&context, 0) || cu.set_current(context))
		return "no context";
	while (!stop) {
		uint64_t neighbours[8];

		for (int i = 0; i < 8; i++) {
			if (cu.alloc(&neighbours[i], 300))
				return "alloc";
		}
		for (int i = 0; i < 8; i++) {
			if (cu.free(neighbours[i]))
				return "free";
		}
	}
	return NULL;
}

/* The allocation at the start of a page may be freed while the page is being pinned for another
 * one. */
static void threads__neighbours_come_and_go(void **state)
{
	pthread_t threads[3];
	void *why;

	(void)state;
	stop = false;
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
	for (int i = 0; i < 300; i++) {
		uint64_t before, buffer;

		assert_int_equal(cu.alloc(&before, 700), 0);
		assert_int_equal(cu.alloc(&buffer, 8), 0);
		assert_int_equal(cu.free(before), 0);
		for (int n = 0; n < 5; n++)
			use_pages_around(buffer, 8);
		assert_int_equal(cu.free(buffer), 0);
	}
	stop = true;
	for (unsigned i = 0; i < 3; i++) {
		pthread_join(threads[i], &why);
		if (why)
			print_message("%s\n", (char *)why);
		assert_null(why);
	}
}

/* A window of Wherry's own must be allocated completely; two allocations may meet within a page. */
static void window__of_neighbours(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	char *backends = backend_is("driver-old") ? "driver" : (char *)(uintptr_t)backend,
	     got[8] = "";
	struct wh_window_options with = { .size = sizeof(with), .backends = backends };
	struct wh_window *window;
	struct wh_engine *engine;
	uint64_t first, second;
	size_t whole;

	(void)state;
	if (!shares_pages)
		return;
	assert_int_equal(wh_engine_open(&options, &engine), 0);
	assert_int_equal(cu.alloc(&first, 100 * KIB), 0);
	assert_int_equal(cu.alloc(&second, 100 * KIB), 0);
	assert_int_equal(second - first, 100 * KIB);
	assert_int_equal(
		wh_window_open(engine, (void *)(uintptr_t)first, 200 * KIB, &with, &window), 0);
	assert_int_equal(wh_window_copy_to(window, 100 * KIB - 4, "12345678", 8), 0);
	assert_memory_equal(cu.alias(first + 100 * KIB - 4), "1234", 4);
	assert_memory_equal(cu.alias(second), "5678", 4);
	assert_int_equal(wh_window_copy_from(window, 100 * KIB - 4, got, 8), 0);
	assert_memory_equal(got, "12345678", 8);
	assert_int_equal(wh_window_close(window), 0);
	assert_int_equal(cu.free(first) + cu.free(second), 0);

	free_middle(KIB, &first, &second, &whole);
	assert_int_equal(wh_window_open(engine, (void *)(uintptr_t)first, whole, &with, &window),
			 -EFAULT);
	assert_int_equal(cu.free(first) + cu.free(second), 0);
	assert_int_equal(wh_engine_close(engine), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		GDRAPI_TEST(map__twice_and_not),
		GDRAPI_TEST(map__unaligned_is_refused),
		GDRAPI_TEST(map__types),
		GDRAPI_TEST(types__names),
		GDRAPI_TEST(info__of_old),
		GDRAPI_TEST(map__two_of_the_same),
		GDRAPI_TEST(copy__bounds),
		GDRAPI_TEST(copy__every_offset),
		GDRAPI_TEST(attribute__truth),
		GDRAPI_TEST(freed__flag),
		GDRAPI_TEST(fork__child_has_none),
		GDRAPI_TEST(fork__child_closes),
		GDRAPI_TEST(threads__beside_libwherry),
		GDRAPI_TEST(threads__neighbours_come_and_go),
		GDRAPI_TEST(window__of_neighbours),
	};

	gdrapi_load(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
