/* SPDX-License-Identifier: Apache-2.0 */
/* The binding to libibverbs: missing, complete and older libraries. */
#include "unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/error.h>

#include "platform/verbs.h"

static void open__no_such_library(void **state)
{
	struct wh_verbs *verbs = NULL;

	(void)state;
	assert_int_equal(wh_verbs_open("/nonexistent/libibverbs.so.1", &verbs), -ENODEV);
	assert_non_null(strstr(wh_error_text(), "/nonexistent/libibverbs.so.1"));
	assert_non_null(strstr(wh_error_text(), "install rdma-core"));
	assert_null(verbs);
}

static void open__another_library(void **state)
{
	struct wh_verbs *verbs = NULL;

	(void)state;
	assert_int_equal(wh_verbs_open(getenv("TEST_CUDA"), &verbs), -ENODEV);
	assert_non_null(strstr(wh_error_text(), "ibv_get_device_list"));
	assert_null(verbs);
}

static void gids__as_the_table_has_them(void **state)
{
	static const uint8_t second[16] = { [10] = 0xff, 0xff, 10, 77, 0, 1 };
	struct ibv_context *context;
	struct ibv_device **list;
	struct ibv_gid_entry entry;
	struct wh_verbs *verbs;
	int count;

	(void)state;
	setenv("FAKE_VERBS", "one", 1);
	assert_int_equal(wh_verbs_open(getenv("TEST_VERBS"), &verbs), 0);
	list = verbs->get_device_list(&count);
	assert_int_equal(count, 1);
	context = verbs->open_device(list[0]);
	assert_int_equal(wh_verbs_gid(verbs, context, "one", 1, 1, &entry), 0);
	assert_memory_equal(entry.gid.raw, second, sizeof(second));
	assert_int_equal(entry.gid_type, IBV_GID_ROCE_V2);
	assert_int_equal(wh_verbs_gid(verbs, context, "one", 1, 5, &entry), -ENOENT);
	assert_int_equal(wh_verbs_gid(verbs, context, "one", 1, 300, &entry), -ENOENT);
	/* With an older library sysfs has the types of GIDs; it does not list this device. */
	verbs->query_gid_ex = NULL;
	assert_int_equal(wh_verbs_gid(verbs, context, "one", 1, 1, &entry), 0);
	assert_memory_equal(entry.gid.raw, second, sizeof(second));
	assert_int_equal(entry.gid_type, IBV_GID_IB);
	assert_int_equal(wh_verbs_gid(verbs, context, "one", 1, 5, &entry), -ENOENT);
	verbs->close_device(context);
	verbs->free_device_list(list);
	wh_verbs_close(verbs);
}

static void status__has_a_text(void **state)
{
	(void)state;
	assert_string_equal(wh_verbs_status(0), "success");
	assert_non_null(strstr(wh_verbs_status(12), "no acknowledgement"));
	assert_string_equal(wh_verbs_status(-1), "an error of the NIC");
	assert_string_equal(wh_verbs_status(3), "an error of the NIC");
	assert_string_equal(wh_verbs_status(99), "an error of the NIC");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__no_such_library),
		cmocka_unit_test(open__another_library),
		cmocka_unit_test(gids__as_the_table_has_them),
		cmocka_unit_test(status__has_a_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
