/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-kernels.c: which kernel image each GPU gets. The fake driver accepts what a real one of that
 * GPU would. */
#include "fake-cuda.h"

#include <errno.h>

#include "kernels/blocks.h"

static void set_capability(int capability)
{
	int (*set)(int, int) = fake_symbol("fake_cuda_attribute");

	assert_int_equal(set(75, capability / 10), 0);
	assert_int_equal(set(76, capability % 10), 0);
}

/* The image that is loaded, for example "sm_90". NULL: none; *out is the error. `newer`: the driver
 * has cuFuncLoad(). */
static const char *loaded_as(bool newer, int *out)
{
	struct wh_cuda_kernels kernels;
	struct wh_cuda_device *device;
	struct wh_cuda_scope scope;
	const char *image = NULL;
	struct wh_cuda *cuda;

	assert_int_equal(wh_cuda_open(getenv("TEST_CUDA"), &cuda), 0);
	assert_int_equal(wh_cuda_ready(cuda), 0);
	if (!newer)
		cuda->cuFuncLoad = NULL;
	device = &cuda->devices[0];
	assert_int_equal(wh_cuda_enter(cuda, device, &scope), 0);
	*out = wh_cuda_kernels_load(cuda, device, &kernels);
	if (!*out) {
		image = kernels.image;
		for (int i = 0; i < WH_BLOCKS_VARIANTS; i++)
			assert_non_null(kernels.blocks[i]);
		/* Only this machine code waits for the launch in front of it. */
		assert_int_equal(kernels.overlap,
				 !strncmp(image, "sm_", 3) && atoi(image + 3) >= 90);
		wh_cuda_kernels_unload(cuda, &kernels);
	}
	wh_cuda_leave(&scope);
	wh_cuda_close(cuda);
	return image;
}

static int tear_down(void **state)
{
	(void)state;
	fake_heal();
	return 0;
}

/* Every capability that CUDA 13.0 knows and that has machine code, and later ones. */
static void images__each_capability(void **state)
{
	static const struct {
		int capability;
		const char *image;
	} all[] = {
		{ 75, "sm_75" },   { 80, "sm_80" },   { 86, "sm_80" },   { 87, "sm_80" },
		{ 88, "sm_80" },   { 89, "sm_80" },   { 90, "sm_90" },   { 100, "sm_100" },
		{ 103, "sm_100" }, { 110, "sm_110" }, { 120, "sm_120" }, { 121, "sm_120" },
		{ 130, "ptx" },    { 200, "ptx" },
	};
	int error;

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		uint64_t before = fake_calls("cuModuleLoadDataEx");
		const char *image;

		set_capability(all[i].capability);
		image = loaded_as(true, &error);
		if (!image || strcmp(image, all[i].image))
			fail_msg("%d.%d gets %s, not %s", all[i].capability / 10,
				 all[i].capability % 10, image ? image : wh_error_text(),
				 all[i].image);
		/* With the first attempt. */
		assert_int_equal(fake_calls("cuModuleLoadDataEx") - before, 1);
	}
}

/* Older than the PTX: the error contains the compiler's reason. */
static void images__too_old(void **state)
{
	static const int all[] = { 72, 70, 61 };
	int error;

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		set_capability(all[i]);
		assert_null(loaded_as(true, &error));
		assert_int_equal(error, -ENOEXEC);
		assert_non_null(strstr(wh_error_text(), "the kernels as ptx"));
		assert_non_null(strstr(wh_error_text(), ".target is higher"));
	}
}

/* The machine code is from a newer toolkit than the driver supports, the PTX is not. Then both
 * are. */
static void images__refused(void **state)
{
	int error;

	(void)state;
	fake_fail("cuModuleLoadDataEx", 1, CUDA_NO_BINARY_FOR_GPU);
	assert_string_equal(loaded_as(true, &error), "ptx");
	fake_fail("cuModuleLoadDataEx", 0, CUDA_UNSUPPORTED_PTX_VERSION);
	assert_null(loaded_as(true, &error));
	assert_int_equal(error, -ENOEXEC);
	assert_non_null(strstr(wh_error_text(), "too old"));
}

/* Lazy loading would load a function with its first launch. Each is loaded at once instead, with or
 * without a driver call for it. */
static void functions__loaded_at_once(void **state)
{
	uint64_t before;
	int error;

	(void)state;
	before = fake_calls("cuFuncLoad");
	assert_non_null(loaded_as(true, &error));
	assert_int_equal(fake_calls("cuFuncLoad") - before, WH_BLOCKS_VARIANTS);
	/* A function that does not load is an error now, not at the first launch. */
	fake_fail("cuFuncLoad", 2, CUDA_OUT_OF_MEMORY);
	assert_null(loaded_as(true, &error));
	assert_int_equal(error, -ENOMEM);
	assert_non_null(strstr(wh_error_text(), "cuFuncLoad (wh_blocks_"));
}

/* The same without that call, before CUDA 12.4: reading an attribute loads the function, too. */
static void functions__loaded_at_once_by_an_old_driver(void **state)
{
	uint64_t loads, asked;
	int error;

	(void)state;
	loads = fake_calls("cuFuncLoad");
	asked = fake_calls("cuFuncGetAttribute");
	assert_non_null(loaded_as(false, &error));
	assert_int_equal(fake_calls("cuFuncLoad"), loads);
	assert_int_equal(fake_calls("cuFuncGetAttribute") - asked, WH_BLOCKS_VARIANTS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(images__each_capability, tear_down),
		cmocka_unit_test_teardown(images__too_old, tear_down),
		cmocka_unit_test_teardown(images__refused, tear_down),
		cmocka_unit_test_teardown(functions__loaded_at_once, tear_down),
		cmocka_unit_test_teardown(functions__loaded_at_once_by_an_old_driver, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
