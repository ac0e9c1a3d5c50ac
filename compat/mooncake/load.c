/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the metadata stores, which are in the module of the registries. */
#include <errno.h>

#include <wherry/engine.h>

#include "compat/mooncake/store.h"
#include "rendezvous/registry.h"

int wh_mooncake_store_load(const struct wh_mooncake_store_ops **out)
{
	const struct wh_mooncake_store_ops *ops;
	wh_mooncake_store_fn *entry;
	void *symbol;
	int error =
		wh_registry_module_load((const void *)wh_engine_open, "wh_mooncake_store", &symbol);

	if (error)
		return error;
	/* ISO C does not convert data pointers to function pointers. */
	*(void **)&entry = symbol;
	ops = entry();
	if (ops->version != WH_MOONCAKE_STORE)
		return wh_fail(ELIBACC,
			       "libwherry-registry.so.0 is from another version of Wherry");
	*out = ops;
	return 0;
}
