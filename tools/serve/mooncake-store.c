/* SPDX-License-Identifier: Apache-2.0 */
/* Open the store of Mooncake's metadata that a URL names. */
#include <errno.h>
#include <string.h>

#include "compat/mooncake/store.h"
#include "rendezvous/registry.h"
#include "secret.h"
#include "serve/mooncake.h"
#include "util/config.h"

#define TIMEOUT 5000 /* ms */

int mooncake_store_open(const char *url, struct mooncake_store *store)
{
	char secret[WH_REGISTRY_URL_MAX] = "";
	struct wh_config_mooncake config;
	const struct wh_mooncake_store_setup setup = {
		.url = *url == '@' ? secret : url,
		.timeout = TIMEOUT,
		.user = config.user,
		.password = config.password,
		.database = config.database,
		.cluster = config.cluster,
	};
	const struct wh_mooncake_store_ops *ops;
	int error;

	if (*url == '@') {
		error = secret_read("--mooncake-metadata", url + 1, secret, sizeof(secret));
		if (error)
			return error;
	}
	if (wh_mooncake_store_load(&ops))
		return fail(ENODEV, "--mooncake-metadata: %s", wh_fail_text());
	wh_config_mooncake(&config);
	error = ops->open(&setup, &store->store);
	explicit_bzero(&config, sizeof(config));
	explicit_bzero(secret, sizeof(secret));
	if (error)
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
