/* SPDX-License-Identifier: Apache-2.0 */
/* libwherry-registry.so: the registries that need other libraries. */
#include "rendezvous/module.h"

static const struct wh_registry_ops *const known[] = {
	&wh_registry_http,
	&wh_registry_etcd,
#ifdef HAVE_HIREDIS
	&wh_registry_redis,
#endif
	NULL,
};

static const struct wh_registry_module module = {
	.version = WH_REGISTRY_MODULE,
	.ops = known,
	.text = wh_fail_text,
};

wh_registry_module_fn wh_registry_module;

__attribute__((visibility("default"))) const struct wh_registry_module *wh_registry_module(void)
{
	return &module;
}
