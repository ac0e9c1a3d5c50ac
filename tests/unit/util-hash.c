/* SPDX-License-Identifier: Apache-2.0 */
/* Finding, inserting and removing elements of a hash table, while it grows. */
#include "unit.h"

#include "util/hash.h"
#include "util/list.h"

struct element {
	struct wh_hash_node node;
	unsigned value;
};

static struct element *find(const struct wh_hash *hash, uint64_t key)
{
	struct wh_hash_node *node = wh_hash_find(hash, key);

	return node ? wh_container(node, struct element, node) : NULL;
}

static void hash_find__empty(void **state)
{
	struct wh_hash hash = { 0 };

	(void)state;
	assert_null(wh_hash_find(&hash, 0));
	assert_null(wh_hash_find(&hash, UINT64_MAX));
	wh_hash_free(&hash);
}

static void hash_insert__grows(void **state)
{
	static struct element elements[20000];
	struct wh_hash hash = { 0 };
	uint64_t keys[20000], seed = 88172645463325252u;

	(void)state;
	for (unsigned i = 0; i < 20000; i++) {
		keys[i] = i % 2 ? i : next_random(&seed);
		elements[i].value = i;
		assert_int_equal(wh_hash_insert(&hash, keys[i], &elements[i].node), 0);
		assert_int_equal(hash.count, i + 1);
		assert_true(hash.count <= (size_t)1 << hash.bits);
	}
	for (unsigned i = 0; i < 20000; i++)
		assert_ptr_equal(find(&hash, keys[i]), &elements[i]);
	assert_null(find(&hash, 20001));
	for (unsigned i = 0; i < 20000; i += 3)
		wh_hash_remove(&hash, &elements[i].node);
	for (unsigned i = 0; i < 20000; i++)
		assert_ptr_equal(find(&hash, keys[i]), i % 3 ? &elements[i] : NULL);
	wh_hash_free(&hash);
	assert_int_equal(hash.count, 0);
	assert_null(find(&hash, keys[1]));
}

/* Keys that share a bucket, so that removal meets the head, the middle and the end of a chain. */
static void hash_remove__one_bucket(void **state)
{
	struct element elements[6] = { 0 };
	struct wh_hash hash = { 0 };
	uint64_t keys[6], key = 1;

	(void)state;
	assert_int_equal(wh_hash_insert(&hash, key, &elements[0].node), 0);
	keys[0] = key;
	for (unsigned i = 1; i < 6; i++) {
		while (wh_hash_bucket(&hash, ++key) != wh_hash_bucket(&hash, 1))
			;
		keys[i] = key;
		assert_int_equal(wh_hash_insert(&hash, key, &elements[i].node), 0);
	}
	wh_hash_remove(&hash, &elements[5].node); /* the head */
	wh_hash_remove(&hash, &elements[2].node);
	wh_hash_remove(&hash, &elements[0].node); /* the end */
	for (unsigned i = 0; i < 6; i++)
		assert_ptr_equal(find(&hash, keys[i]),
				 i == 0 || i == 2 || i == 5 ? NULL : &elements[i]);
	/* A removed node can be inserted again, under another key. */
	assert_int_equal(wh_hash_insert(&hash, 0, &elements[2].node), 0);
	assert_ptr_equal(find(&hash, 0), &elements[2]);
	wh_hash_free(&hash);
}

static void hash_find__newest_of_equal_keys(void **state)
{
	struct element elements[2] = { 0 };
	struct wh_hash hash = { 0 };

	(void)state;
	assert_int_equal(wh_hash_insert(&hash, 7, &elements[0].node), 0);
	assert_int_equal(wh_hash_insert(&hash, 7, &elements[1].node), 0);
	assert_ptr_equal(find(&hash, 7), &elements[1]);
	wh_hash_remove(&hash, &elements[1].node);
	assert_ptr_equal(find(&hash, 7), &elements[0]);
	wh_hash_free(&hash);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hash_find__empty),
		cmocka_unit_test(hash_insert__grows),
		cmocka_unit_test(hash_remove__one_bucket),
		cmocka_unit_test(hash_find__newest_of_equal_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
