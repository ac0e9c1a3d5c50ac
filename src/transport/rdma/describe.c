/* SPDX-License-Identifier: Apache-2.0 */
/* The explanation of a batch: how NICs reach its GPU memory at both sides, and its files, and why
 * not better. */
#include <stdio.h>
#include <string.h>

#include "transport/rdma/flow.h"
#include "transport/rdma/rdma.h"

/* How the endpoints' NICs reach the first GPU memory, or file, of one side, local or remote. */
struct side_methods {
	bool known;
	bool file;
	unsigned count;
	struct {
		bool used; /* for some bytes of this batch */
		enum wh_rdma_method method; /* WH_RDMA_STAGED also if it is not reached at all */
		const char *writes;
		char nic[WH_NAME_MAX];
		char why[WH_REFUSAL]; /* why no better method is used */
	} nics[RDMA_ENDPOINTS];
};

/* Append the NIC of a rail, unless another endpoint has added it. */
static void side_add(struct side_methods *side, const char *rail, bool used,
		     enum wh_rdma_method method, const char *writes, const char *why)
{
	size_t length = strcspn(rail, ":");
	unsigned i = 0;

	while (i < side->count &&
	       (strncmp(side->nics[i].nic, rail, length) || side->nics[i].nic[length]))
		i++;
	if (i < side->count)
		side->nics[i].used |= used;
	if (i < side->count || i == RDMA_ENDPOINTS)
		return;
	side->known = true;
	side->nics[i].used = used;
	side->nics[i].method = method;
	side->nics[i].writes = writes;
	snprintf(side->nics[i].nic, sizeof(side->nics[i].nic), "%.*s", (int)length, rail);
	memcpy(side->nics[i].why, why, sizeof(side->nics[i].why));
	side->count++;
}

/* The NIC to name first: one that was used, or would be. */
static unsigned side_best(const struct side_methods *side)
{
	for (unsigned i = 0; i < side->count; i++)
		if (side->nics[i].used)
			return i;
	for (unsigned i = 0; i < side->count; i++)
		if (side->nics[i].method != WH_RDMA_STAGED)
			return i;
	return 0;
}

/* Enter the region, which may be closing. Under rdma_peer.lock, as the next one. */
static void side_look_local(struct side_methods *side, const struct rdma_peer *rdma,
			    const struct wh_batch *batch, uint64_t id)
{
	struct wh_region_entry *entry =
		side->known ? NULL :
			      wh_region_entry_enter(wh_engine_regions(rdma->rdma->engine), id);
	const struct wh_region *region = wh_container(entry, struct wh_region, entry);

	for (unsigned i = 0; entry && !wh_kind_on_host(entry->kind) && i < rdma->endpoint_count;
	     i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];
		const struct rdma_memory *memory = rdma_memory_find(region, endpoint->rail->nic);

		if (memory && endpoint->path[0]) {
			side->file = entry->kind == WH_MEMORY_FILE;
			side_add(side, endpoint->rail->name, rdma_batch_bytes(batch, i) != 0,
				 memory->mrs ? memory->mrs->method : WH_RDMA_STAGED,
				 !memory->mrs                    ? "" :
				 rdma_region_needs_flush(region) ? ", flushed" :
								   ", ordered",
				 memory->why);
		}
	}
	if (entry)
		wh_region_entry_leave(entry);
}

static void side_look_remote(struct side_methods *side, const struct rdma_peer *rdma,
			     const struct wh_batch *batch, uint64_t id)
{
	struct wh_region_entry *entry =
		side->known ? NULL : wh_region_entry_enter(wh_peer_regions(rdma->peer), id);

	for (unsigned i = 0; entry && !wh_kind_on_host(entry->kind) && i < rdma->endpoint_count;
	     i++) {
		const struct rdma_endpoint *endpoint = rdma->endpoints[i];
		const struct rdma_keys *keys = rdma_keys_find(
			wh_container(entry, struct wh_remote_region, entry), endpoint->remote_nic);

		if (keys && endpoint->path[0]) {
			side->file = entry->kind == WH_MEMORY_FILE;
			side_add(side, endpoint->remote_end.name, rdma_batch_bytes(batch, i) != 0,
				 keys->error ? WH_RDMA_STAGED : keys->method,
				 keys->error ? "" :
				 keys->flush ? ", flushed" :
					       ", ordered",
				 keys->why);
		}
	}
	/* No NIC reaches it, and it was not staged: another transport moved it. */
	if (side->known && side->nics[side_best(side)].method == WH_RDMA_STAGED &&
	    !side->nics[side_best(side)].used)
		*side = (struct side_methods){ 0 };
	if (entry)
		wh_region_entry_leave(entry);
}

static void sides_look(struct rdma_peer *rdma, const struct wh_batch *batch,
		       struct side_methods *local, struct side_methods *remote)
{
	const struct wh_fragment *fragment = NULL;

	*local = *remote = (struct side_methods){ 0 };
	pthread_mutex_lock(&rdma->lock);
	while ((fragment = wh_batch_fragment(batch, WH_TRANSPORT_COUNT, fragment))) {
		for (uint64_t k = fragment->first;
		     k < fragment->first + fragment->count && !(local->known && remote->known);
		     k++) {
			side_look_local(local, rdma, batch, wh_fragment_local_id(fragment, k));
			side_look_remote(remote, rdma, batch, wh_fragment_remote(fragment, k));
		}
	}
	pthread_mutex_unlock(&rdma->lock);
}

static size_t side_print(const struct side_methods *side, const char *whose, char *line,
			 size_t size)
{
	unsigned best = side_best(side);
	size_t used;

	if (!side->known)
		return 0;
	used = (size_t)snprintf(line, size, "%s %s: %s%s%s%s%s", whose,
				side->file ? "file" : "GPU memory",
				rdma_method_name(side->nics[best].method), side->nics[best].writes,
				*side->nics[best].why ? " (" : "", side->nics[best].why,
				*side->nics[best].why ? ")" : "");
	/* The other NICs, if they differ. */
	for (unsigned i = 0; i < side->count && used < size; i++) {
		if (side->nics[i].method == side->nics[best].method)
			continue;
		used += (size_t)snprintf(line + used, size - used, ", %s: %s%s%s%s",
					 side->nics[i].nic,
					 side->nics[i].method == WH_RDMA_STAGED ?
						 "not used" :
						 rdma_method_name(side->nics[i].method),
					 *side->nics[i].why ? " (" : "", side->nics[i].why,
					 *side->nics[i].why ? ")" : "");
	}
	return used < size ? used : size - 1;
}

void rdma_describe_memory(struct rdma_peer *rdma, const struct wh_batch *batch, char *line,
			  size_t size)
{
	struct side_methods local, remote;
	size_t at;

	sides_look(rdma, batch, &local, &remote);
	at = side_print(&local, "rdma, our", line, size);
	side_print(&remote, at ? "; their" : "rdma, their", line + at, size - at);
}

void rdma_describe_methods(struct rdma_peer *rdma, const struct wh_batch *batch, char *out,
			   size_t size)
{
	enum wh_rdma_method here, there;
	struct side_methods local, remote;
	bool both;

	sides_look(rdma, batch, &local, &remote);
	here = local.nics[side_best(&local)].method;
	there = remote.nics[side_best(&remote)].method;
	both = local.known && remote.known && here != there;
	if (local.known || remote.known)
		snprintf(out, size, ", %s%s%s", rdma_method_name(local.known ? here : there),
			 both ? "+" : "", both ? rdma_method_name(there) : "");
	else
		*out = 0;
}
