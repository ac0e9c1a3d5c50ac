/* SPDX-License-Identifier: Apache-2.0 */
/* net-quota.c: quotas per source address */
#include "unit.h"

#include "net/quota.h"

static void quota__bounded_by_address(void **state)
{
	struct wh_quota_table table = { .limit = 100 };
	static struct wh_quota *quotas[4096];
	struct wh_quota *other;

	(void)state;
	for (int i = 0; i < 4096; i++) {
		quotas[i] = wh_quota_acquire(&table, 7);
		assert_non_null(quotas[i]);
		assert_ptr_equal(quotas[i], quotas[0]);
	}
	assert_null(wh_quota_acquire(&table, 7));
	other = wh_quota_acquire(&table, 8);
	assert_non_null(other);
	assert_ptr_not_equal(other, quotas[0]);
	/* Charges of one address do not affect another. */
	wh_quota_charge_buffered(quotas[0], 100);
	assert_true(wh_quota_is_full(quotas[0]));
	assert_false(wh_quota_is_full(other));
	wh_quota_charge_buffered(quotas[0], -1);
	assert_false(wh_quota_is_full(quotas[0]));
	wh_quota_release(quotas[4095]);
	assert_ptr_equal(wh_quota_acquire(&table, 7), quotas[0]);
	for (int i = 0; i < 4096; i++)
		wh_quota_release(quotas[0]);
	wh_quota_release(other);
	assert_int_equal(table.by_source.count, 0);
	wh_quota_table_free(&table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quota__bounded_by_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
