/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <wherry/wherry.h>

int main(void)
{
	char from[] = "across the river", to[sizeof(from)] = "", routes[256];
	struct wh_transfer transfer = { .op = WH_WRITE, .length = sizeof(from) };
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_region *source, *target;
	struct wh_batch *batch;

	if (wh_engine_open(NULL, &engine) || wh_peer_open(engine, "self", NULL, &peer) ||
	    wh_region_register(engine, from, sizeof(from), NULL, &source) ||
	    wh_region_register(engine, to, sizeof(to), NULL, &target) ||
	    wh_batch_new(peer, NULL, &batch))
		return fprintf(stderr, "%s\n", wh_error_text()), 1;
	transfer.local = source;
	transfer.remote = wh_region_id(target);
	if (wh_batch_add(batch, &transfer, 1) || wh_batch_submit(batch) ||
	    wh_batch_wait_for(batch, WH_FOREVER) || wh_batch_status(batch))
		return fprintf(stderr, "%s\n", wh_error_text()), 1;
	wh_batch_explain(batch, routes, sizeof(routes));
	printf("%s, by\n%s", to, routes);
	return wh_batch_free(batch) || wh_region_unregister(source) ||
	       wh_region_unregister(target) || wh_peer_close(peer) || wh_engine_close(engine);
}
