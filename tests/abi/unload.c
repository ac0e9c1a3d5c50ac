/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that a program has closed are gone: unload LIBRARY... */
#include "../unit/unit.h"

#include <dlfcn.h>

#include <wherry/wherry.h>

static char **libraries;

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		fail_msg("%s", dlerror());
	return found;
}

static void gone(const char *path)
{
	void *again = dlopen(path, RTLD_NOW | RTLD_NOLOAD);

	if (again)
		fail_msg("%s is still there", path);
}

static void unload__each(void **state)
{
	(void)state;
	for (char **path = libraries; *path; path++) {
		void *library = dlopen(*path, RTLD_NOW | RTLD_LOCAL);

		if (!library)
			fail_msg("%s", dlerror());
		assert_int_equal(dlclose(library), 0);
		gone(*path);
	}
}

/* After an engine, with its threads; several times, so that nothing is left behind each time. */
static void unload__after_an_engine(void **state)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "127.0.0.1:0" };
	int (*open_engine)(const struct wh_engine_options *options, struct wh_engine **out);
	int (*close_engine)(struct wh_engine * engine);
	struct wh_engine *engine;

	(void)state;
	for (int i = 0; i < 3; i++) {
		void *library = dlopen(libraries[0], RTLD_NOW | RTLD_LOCAL);

		assert_non_null(library);
		*(void **)&open_engine = symbol(library, "wh_engine_open");
		*(void **)&close_engine = symbol(library, "wh_engine_close");
		assert_int_equal(open_engine(&options, &engine), 0);
		assert_int_equal(close_engine(engine), 0);
		assert_int_equal(dlclose(library), 0);
		gone(libraries[0]);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unload__each),
		cmocka_unit_test(unload__after_an_engine),
	};

	libraries = argv + 1;
	return argc > 1 ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
