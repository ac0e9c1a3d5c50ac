/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of Mooncake's metadata, for the command. */
#include <errno.h>

#include "mooncake.h"
#include "mooncake/store.h"

#define TIMEOUT 5000 /* ms */

int mooncake_store_open(const char *url, struct mooncake_store *store)
{
	const struct wh_mooncake_store_setup setup = { .url = url, .timeout = TIMEOUT };
	const struct wh_mooncake_store_ops *ops;

	if (wh_mooncake_store_load(&ops))
		return fail(ENODEV, "--mooncake-metadata: %s", wh_fail_text());
	if (ops->open(&setup, &store->store))
		return usage_error("--mooncake-metadata: %s", ops->text());
	store->ops = ops;
	return 0;
}

void mooncake_store_close(struct mooncake_store *store)
{
	if (store->ops)
		store->ops->close(store->store);
	store->ops = NULL;
}
