/* SPDX-License-Identifier: Apache-2.0 */
/* gdrapi-fixture.c: libgdrapi.so.2 and the CUDA driver, opened at run time */
#include "gdrapi-fixture.h"

#include <dlfcn.h>
#include <stdio.h>

struct gdrapi_functions api;
struct cuda_functions cu;
const char *backend;
bool shares_pages;
gdr_t gdr;
uint64_t memory;

static void look_up(void *library, const char *name, void *out)
{
	void *found = dlsym(library, name);

	if (!found)
		print_message("no %s\n", name);
	assert_non_null(found);
	memcpy(out, &found, sizeof(found));
}

bool backend_is(const char *name)
{
	return !strcmp(backend, name);
}

int gdrapi_begin(void **state)
{
	(void)state;
	gdr = api.gdr_open();
	assert_non_null(gdr);
	assert_int_equal(cu.alloc(&memory, SIZE), 0);
	memset(cu.alias(memory), 0x11, SIZE);
	return 0;
}

int gdrapi_end(void **state)
{
	(void)state;
	assert_int_equal(api.gdr_close(gdr), 0);
	assert_int_equal(cu.free(memory), 0);
	want_nvidia_clean();
	return 0;
}

gdr_mh_t pin_buffer(uint64_t address, size_t size)
{
	gdr_mh_t mh = { 0 };

	assert_int_equal(api.gdr_pin_buffer(gdr, address, size, 0, 0, &mh), 0);
	assert_true(mh.h != 0);
	return mh;
}

void *map_buffer(gdr_mh_t mh, size_t size)
{
	void *va = NULL;

	assert_int_equal(api.gdr_map(gdr, mh, &va, size), 0);
	assert_non_null(va);
	return va;
}

gdr_info_v2_t buffer_info(gdr_mh_t mh)
{
	gdr_info_v2_t out;

	assert_int_equal(api.gdr_get_info_v2(gdr, mh, &out), 0);
	return out;
}

void use_pages_around(uint64_t buffer, size_t length)
{
	uint64_t start = buffer & ~(PAGE - 1), end = (buffer + length + PAGE - 1) & ~(PAGE - 1);
	unsigned char *sent = malloc(length), *got = calloc(1, length), *va = NULL, *mine;
	unsigned char before = 0, behind = 0, now;
	gdr_info_v2_t i;
	gdr_mh_t mh;

	for (size_t n = 0; n < length; n++)
		sent[n] = (unsigned char)(n * 13 + buffer / 512);
	assert_int_equal(api.gdr_pin_buffer_v2(gdr, start, end - start, GDR_PIN_FLAG_DEFAULT, &mh),
			 0);
	assert_int_equal(api.gdr_map(gdr, mh, (void **)&va, end - start), 0);
	i = buffer_info(mh);
	assert_int_equal(i.va, start);
	assert_int_equal(i.mapped_size, end - start);
	mine = va + (buffer - i.va);
	if (buffer > start)
		before = mine[-1];
	if (buffer + length < end)
		behind = mine[length];
	assert_int_equal(api.gdr_copy_to_mapping(mh, mine, sent, length), 0);
	assert_memory_equal(cu.alias(buffer), sent, length);
	for (size_t n = 0; n < length; n++)
		sent[n] ^= 0xff;
	memcpy(cu.alias(buffer), sent, length);
	assert_int_equal(api.gdr_copy_from_mapping(mh, got, mine, length), 0);
	assert_memory_equal(got, sent, length);
	now = buffer > start ? mine[-1] : before;
	assert_int_equal(now, before);
	now = buffer + length < end ? mine[length] : behind;
	assert_int_equal(now, behind);
	assert_int_equal(api.gdr_unmap(gdr, mh, va, end - start), 0);
	assert_int_equal(api.gdr_unpin_buffer(gdr, mh), 0);
	free(sent);
	free(got);
}

void free_middle(size_t length, uint64_t *first, uint64_t *last, size_t *whole)
{
	uint64_t middle;

	assert_int_equal(cu.alloc(first, 100 * KIB), 0);
	assert_int_equal(cu.alloc(&middle, length), 0);
	assert_int_equal(cu.alloc(last, 100 * KIB), 0);
	assert_int_equal(middle - *first, 100 * KIB);
	*whole = *last + 100 * KIB - *first;
	assert_int_equal(*whole, 200 * KIB + length);
	assert_int_equal(cu.free(middle), 0);
}

void gdrapi_load(int argc, char **argv)
{
	void *library = dlopen("libgdrapi.so.2", RTLD_NOW | RTLD_LOCAL), *context;

	backend = argc > 1 ? argv[1] : "rm";
	shares_pages = getenv("FAKE_CUDA_SHARE");
	if (!library)
		print_message("%s\n", dlerror());
	assert_non_null(library);
#define LOOK_UP(type, name, parameters) look_up(library, #name, &api.name);
	FUNCTIONS(LOOK_UP)
	cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	assert_non_null(cu.library);
	look_up(cu.library, "cuInit", &cu.init);
	look_up(cu.library, "cuDevicePrimaryCtxRetain", &cu.retain);
	look_up(cu.library, "cuCtxSetCurrent", &cu.set_current);
	look_up(cu.library, "cuMemAlloc_v2", &cu.alloc);
	look_up(cu.library, "cuMemFree_v2", &cu.free);
	look_up(cu.library, "fake_cuda_alias", &cu.alias);
	assert_int_equal(cu.init(0), 0);
	assert_int_equal(cu.retain(&context, 0), 0);
	assert_int_equal(cu.set_current(context), 0);
}
