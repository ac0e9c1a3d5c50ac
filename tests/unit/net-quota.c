/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "core/engine.h"
#include "net/quota.h"
#include "util/config.h"
#include "util/list.h"

static void guest__bounded_by_address(void **state)
{
	static struct wh_engine engine;
	static struct wh_quota *quotas[4096];
	struct wh_quota *other;

	(void)state;
	engine.config.number[WH_SETTING_MAX_BUFFERED] = 100;
	wh_list_init(&engine.quotas);
	for (int i = 0; i < 4096; i++) {
		quotas[i] = wh_quota_acquire(&engine, 7);
		assert_non_null(quotas[i]);
		assert_ptr_equal(quotas[i], quotas[0]);
	}
	assert_null(wh_quota_acquire(&engine, 7));
	other = wh_quota_acquire(&engine, 8);
	assert_non_null(other);
	assert_ptr_not_equal(other, quotas[0]);
	/* What one holds is not held against the other. */
	wh_quota_charge_buffered(quotas[0], 100);
	assert_true(wh_quota_is_full(quotas[0]));
	assert_false(wh_quota_is_full(other));
	wh_quota_charge_buffered(quotas[0], -1);
	assert_false(wh_quota_is_full(quotas[0]));
	wh_quota_release(quotas[4095]);
	assert_ptr_equal(wh_quota_acquire(&engine, 7), quotas[0]);
	for (int i = 0; i < 4096; i++)
		wh_quota_release(quotas[0]);
	wh_quota_release(other);
	assert_true(wh_list_empty(&engine.quotas));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(guest__bounded_by_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
