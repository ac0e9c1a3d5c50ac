/* SPDX-License-Identifier: Apache-2.0 */
/* gdrapi-start.c: what libgdrapi.so.2 does before anything is pinned
 *
 * Which variables of the environment it reads, and what it does not touch. Each test runs in a
 * process of its own, in which nothing has been opened before. */
#include "../../unit/unit.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../fake/nvidia-control.h"
#include "gdrapi.h"

static struct {
	gdr_t (*open)(void);
	int (*close)(gdr_t);
	void (*runtime_get_version)(int *, int *);
	int (*driver_get_version)(gdr_t, int *, int *);
	int (*get_attribute)(gdr_t, int, int *);
	int (*get_mapping_type_string)(int, const char **);
} api;

static struct {
	int (*init)(unsigned);
	int (*count)(int *);
	int (*retain)(void **, int);
	uint64_t (*calls)(const char *);
} cu;

static gdr_t g;

static void look_up(void *library, const char *name, void *out)
{
	void *found = library ? dlsym(library, name) : NULL;

	if (!found)
		print_message("%s: %s\n", name, dlerror());
	assert_non_null(found);
	memcpy(out, &found, sizeof(found));
}

/* A function that runs in a child returns 0, or what its comment says; FAILED if an expectation
 * does not hold. */
#define FAILED 99
#define EXPECT(condition)                                                                          \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			print_message("line %d: %s\n", __LINE__, #condition);                      \
			return FAILED;                                                             \
		}                                                                                  \
	} while (0)

static int in_child(int (*run)(void))
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();

	assert_true(child >= 0);
	if (!child) {
		status = run();
		fflush(stdout);
		_exit(status);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
}

static int use_cuda(void)
{
	void *context;
	int count = 0;

	EXPECT(cu.init(0) == 0 && cu.count(&count) == 0 && count > 0);
	EXPECT(cu.retain(&context, 0) == 0);
	return 0;
}

static int ask_all(void)
{
	int major, minor, value;
	const char *name;

	g = api.open();
	EXPECT(g);
	api.runtime_get_version(&major, &minor);
	EXPECT(api.driver_get_version(g, &major, &minor) == 0);
	for (int a = GDR_ATTR_USE_PERSISTENT_MAPPING; a < GDR_ATTR_MAX; a++)
		EXPECT(api.get_attribute(g, a, &value) == 0);
	EXPECT(api.get_mapping_type_string(GDR_MAPPING_TYPE_WC, &name) == 0);
	EXPECT(cu.calls("cuInit") == 0);
	EXPECT(in_child(use_cuda) == 0);
	EXPECT(api.close(g) == 0);
	EXPECT(cu.calls("cuInit") == 0);
	return use_cuda();
}

static void query__starts_no_cuda(void **state)
{
	(void)state;
	assert_int_equal(in_child(ask_all), 0);
}

/* Returns 77 if it cannot be opened. */
static int open_by_dmabuf(void)
{
	int value = 0;

	setenv("GDRCOPY_USE_DMABUF_MMAP", "1", 1);
	setenv("WHERRY_WINDOW", "driver,rm", 1);
	fake_nvidia_gdrdrv(1);
	g = api.open();
	if (!g)
		return 77;
	EXPECT(api.get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &value) == 0);
	EXPECT(value == 1 && api.close(g) == 0);
	return 0;
}

static int open_by_dmabuf_old(void)
{
	setenv("FAKE_CUDA_DRIVER", "13020", 1);
	return open_by_dmabuf();
}

static int open_by_dmabuf_new(void)
{
	setenv("FAKE_CUDA_DRIVER", "13030", 1);
	return open_by_dmabuf();
}

/* The kernel module and the driver's own interface exist, but are not used. */
static void environment__dmabuf_alone(void **state)
{
	(void)state;
	assert_int_equal(in_child(open_by_dmabuf_old), 77);
	assert_int_equal(in_child(open_by_dmabuf_new), 0);
}

/* Returns 1 if a refusal writes its reason to stderr. */
static int refusal_logged(void)
{
	char text[256] = "";
	int ends[2];

	EXPECT(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
	api.close(api.open());
	EXPECT(api.close(NULL) == EINVAL);
	close(ends[1]);
	close(STDERR_FILENO);
	return read(ends[0], text, sizeof(text) - 1) > 0 &&
	       strstr(text, "gdr_close: the gdr is NULL");
}

static int log_unset(void)
{
	unsetenv("GDRCOPY_ENABLE_LOGGING");
	return refusal_logged();
}

static int log_zero(void)
{
	setenv("GDRCOPY_ENABLE_LOGGING", "0", 1);
	return refusal_logged();
}

static int log_empty(void)
{
	setenv("GDRCOPY_ENABLE_LOGGING", "", 1);
	return refusal_logged();
}

static void environment__any_value_logs(void **state)
{
	(void)state;
	assert_int_equal(in_child(log_unset), 0);
	assert_int_equal(in_child(log_zero), 1);
	assert_int_equal(in_child(log_empty), 1);
}

static void gdrapi_load(void)
{
	void *library = dlopen("libgdrapi.so.2", RTLD_NOW | RTLD_LOCAL);
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	look_up(library, "gdr_open", &api.open);
	look_up(library, "gdr_close", &api.close);
	look_up(library, "gdr_runtime_get_version", &api.runtime_get_version);
	look_up(library, "gdr_driver_get_version", &api.driver_get_version);
	look_up(library, "gdr_get_attribute", &api.get_attribute);
	look_up(library, "gdr_get_mapping_type_string", &api.get_mapping_type_string);
	look_up(cuda, "cuInit", &cu.init);
	look_up(cuda, "cuDeviceGetCount", &cu.count);
	look_up(cuda, "cuDevicePrimaryCtxRetain", &cu.retain);
	look_up(cuda, "fake_cuda_calls", &cu.calls);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(query__starts_no_cuda),
		cmocka_unit_test(environment__dmabuf_alone),
		cmocka_unit_test(environment__any_value_logs),
	};

	gdrapi_load();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
