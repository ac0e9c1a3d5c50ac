/* SPDX-License-Identifier: Apache-2.0 */
/* The engines of two layouts as nodes, and the links of their hosts. */
#include "weights/cluster.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

static bool host_same(const struct wh_host *a, const struct wh_host *b)
{
	return a->nics == b->nics && a->nic_rate == b->nic_rate &&
	       a->nic_latency == b->nic_latency && a->uplink_rate == b->uplink_rate &&
	       a->gpu_rate == b->gpu_rate && a->gpu_latency == b->gpu_latency &&
	       a->copy_rate == b->copy_rate && a->memory_rate == b->memory_rate &&
	       a->engine_rate == b->engine_rate;
}

static int no_memory(void)
{
	return wh_fail(ENOMEM, "no memory for the links between engines");
}

/* *of_host[side]: the host of each of the layout's hosts. */
static int hosts_join(struct wh_cluster *cluster, const struct wh_layout *const layouts[2],
		      uint32_t *of_host[2])
{
	const struct wh_layout *a = layouts[0], *b = layouts[1];
	uint32_t found;

	for (uint32_t i = 0; i < a->host_count; i++) {
		of_host[0][i] = i;
		cluster->hosts[i] = &a->hosts[i];
	}
	cluster->host_count = a->host_count;
	for (uint32_t i = 0; i < b->host_count; i++) {
		const struct wh_host *host = &b->hosts[i];

		if (!wh_layout_find_host(a, host->name.text, strlen(host->name.text), &found)) {
			found = cluster->host_count++;
			cluster->hosts[found] = host;
		} else if (!host_same(&a->hosts[found], host)) {
			return wh_fail(EINVAL,
				       "host '%.60s': %.60s and %.60s say different things of "
				       "its NICs, rates or latencies (%" PRIu32
				       " NICs of %g GB/s, %" PRIu32 " of %g)",
				       host->name.text, a->label, b->label, a->hosts[found].nics,
				       a->hosts[found].nic_rate, host->nics, host->nic_rate);
		}
		of_host[1][i] = found;
	}
	return 0;
}

struct device_key {
	uint32_t host;
	int32_t gpu;
	uint32_t node;
};

static int device_order(const void *left, const void *right)
{
	const struct device_key *a = left, *b = right;

	if (a->host != b->host)
		return a->host < b->host ? -1 : 1;
	return (a->gpu > b->gpu) - (a->gpu < b->gpu);
}

/* Number the devices, sorted by host and GPU, and make their links. */
static void devices_number(struct wh_cluster *cluster, struct device_key *keys)
{
	qsort(keys, cluster->node_count, sizeof(*keys), device_order);
	for (uint32_t i = 0; i < cluster->node_count; i++) {
		const struct wh_host *host = cluster->hosts[keys[i].host];
		double rate = keys[i].gpu == WH_LAYOUT_NO_GPU ? host->memory_rate : host->gpu_rate;
		double copy = keys[i].gpu == WH_LAYOUT_NO_GPU ? host->memory_rate : host->copy_rate;

		if (!i || device_order(&keys[i - 1], &keys[i])) {
			for (int kind = WH_LINK_DEVICE_OUT; kind <= WH_LINK_COPY; kind++)
				cluster->links[cluster->link_count++] = (struct wh_link){
					.rate = kind == WH_LINK_COPY ? copy : rate,
					.kind = (enum wh_link_kind)kind,
					.host = keys[i].host,
					.number = keys[i].gpu,
				};
			cluster->device_count++;
		}
		cluster->nodes[keys[i].node].device = cluster->device_count - 1;
	}
}

/* Who copies within a host's memory uses CPUs of its own, up to a rate. */
static void copiers_number(struct wh_cluster *cluster)
{
	for (uint32_t i = 0; i < cluster->node_count; i++) {
		struct wh_node *node = &cluster->nodes[i];
		double rate = cluster->hosts[node->host]->engine_rate;

		if (rate <= 0 || cluster->links[3 * node->device].number != WH_LAYOUT_NO_GPU)
			continue;
		node->copies = cluster->link_count;
		cluster->links[cluster->link_count++] = (struct wh_link){
			.rate = rate,
			.kind = WH_LINK_ENGINE,
			.host = node->host,
			.number = (int32_t)i,
		};
	}
}

/* A pair of links, out and in. */
static uint32_t pair_add(struct wh_cluster *cluster, enum wh_link_kind out, uint32_t host,
			 uint32_t number, double rate)
{
	for (int i = 0; i < 2; i++)
		cluster->links[cluster->link_count++] = (struct wh_link){
			.rate = rate,
			.kind = (enum wh_link_kind)(out + i),
			.host = host,
			.number = (int32_t)number,
		};
	return cluster->link_count - 2;
}

/* node.nic_out is the NIC's number before, and its link afterwards. */
static int nics_number(struct wh_cluster *cluster)
{
	uint32_t *first = calloc(cluster->host_count + 1, sizeof(*first));

	if (!first)
		return no_memory();
	for (uint32_t host = 0; host < cluster->host_count; host++) {
		const struct wh_host *said = cluster->hosts[host];

		first[host] = cluster->link_count;
		for (uint32_t i = 0; i < said->nics; i++)
			pair_add(cluster, WH_LINK_NIC_OUT, host, i, said->nic_rate);
		if (said->uplink_rate > 0)
			cluster->uplinks[host] =
				pair_add(cluster, WH_LINK_UPLINK_OUT, host, 0, said->uplink_rate);
	}
	for (uint32_t i = 0; i < cluster->node_count; i++)
		cluster->nodes[i].nic_out =
			first[cluster->nodes[i].host] + 2 * cluster->nodes[i].nic_out;
	free(first);
	return 0;
}

/* Make nodes of the engines; keys[node] says where each is. */
static int engines_join(struct wh_cluster *cluster, const struct wh_layout *const layouts[2],
			uint32_t *const of_host[2], struct device_key *keys)
{
	for (int side = 0; side < 2; side++) {
		const struct wh_layout *layout = layouts[side];

		for (uint32_t i = 0; i < layout->engine_count; i++) {
			const struct wh_layout_engine *engine = &layout->engines[i];
			struct wh_node node = { .name = engine->name.text,
						.host = of_host[side][engine->host],
						.nic_out = engine->nic };
			uint32_t found;

			if (side && wh_layout_find_engine(layouts[0], node.name, strlen(node.name),
							  &found)) {
				const struct wh_node *other = &cluster->nodes[found];

				if (other->host != node.host || other->nic_out != node.nic_out ||
				    keys[found].gpu != engine->gpu)
					return wh_fail(
						EINVAL,
						"engine '%.60s' is at host '%.40s', GPU %" PRId32
						", NIC %" PRIu32 " in %.40s, at '%.40s', %" PRId32
						", %" PRIu32 " in %.40s",
						node.name, cluster->hosts[other->host]->name.text,
						keys[found].gpu, other->nic_out, layouts[0]->label,
						cluster->hosts[node.host]->name.text, engine->gpu,
						node.nic_out, layout->label);
				cluster->of_engine[side][i] = found;
				continue;
			}
			keys[cluster->node_count] =
				(struct device_key){ node.host, engine->gpu, cluster->node_count };
			cluster->of_engine[side][i] = cluster->node_count;
			cluster->nodes[cluster->node_count++] = node;
		}
	}
	return 0;
}

int wh_cluster_init(struct wh_cluster *cluster, const struct wh_layout *sources,
		    const struct wh_layout *targets)
{
	const struct wh_layout *const layouts[2] = { sources, targets };
	size_t engines = (size_t)sources->engine_count + targets->engine_count;
	size_t hosts = (size_t)sources->host_count + targets->host_count, links = 4 * engines;
	struct device_key *keys = calloc(engines + 1, sizeof(*keys));
	uint32_t *of_host[2];
	int error;

	memset(cluster, 0, sizeof(*cluster));
	for (int side = 0; side < 2; side++) {
		for (uint32_t i = 0; i < layouts[side]->host_count; i++)
			links += 2 * ((size_t)layouts[side]->hosts[i].nics + 1);
		cluster->of_engine[side] = calloc(layouts[side]->engine_count + 1, 4);
		of_host[side] = calloc(layouts[side]->host_count + 1, 4);
	}
	cluster->nodes = calloc(engines + 1, sizeof(*cluster->nodes));
	cluster->hosts = (const struct wh_host **)calloc(hosts + 1, sizeof(*cluster->hosts));
	cluster->uplinks = calloc(hosts + 1, sizeof(*cluster->uplinks));
	cluster->links = calloc(links + 1, sizeof(*cluster->links));
	error = keys && of_host[0] && of_host[1] && cluster->of_engine[0] &&
				cluster->of_engine[1] && cluster->nodes && cluster->hosts &&
				cluster->uplinks && cluster->links ?
			hosts_join(cluster, layouts, of_host) :
			no_memory();
	if (!error)
		error = engines_join(cluster, layouts, of_host, keys);
	if (!error) {
		devices_number(cluster, keys);
		copiers_number(cluster);
		error = nics_number(cluster);
	}
	free(keys);
	free(of_host[0]);
	free(of_host[1]);
	if (error)
		wh_cluster_free(cluster);
	return error;
}

void wh_cluster_free(struct wh_cluster *cluster)
{
	free(cluster->nodes);
	free((void *)cluster->hosts);
	free(cluster->uplinks);
	free(cluster->links);
	free(cluster->of_engine[0]);
	free(cluster->of_engine[1]);
	memset(cluster, 0, sizeof(*cluster));
}

void wh_cluster_path(const struct wh_cluster *cluster, uint32_t from, uint32_t to,
		     struct wh_path *out)
{
	const struct wh_node *source = &cluster->nodes[from], *target = &cluster->nodes[to];
	const struct wh_host *host = cluster->hosts[source->host];

	out->count = 0;
	if (source->device == target->device) {
		out->links[out->count++] = 3 * source->device + WH_LINK_COPY;
		if (target->copies)
			out->links[out->count++] = target->copies;
		out->latency = 1e3 * host->gpu_latency;
	} else if (source->host == target->host) {
		out->links[out->count++] = 3 * source->device + WH_LINK_DEVICE_OUT;
		out->links[out->count++] = 3 * target->device + WH_LINK_DEVICE_IN;
		out->latency = 1e3 * host->gpu_latency;
	} else {
		uint32_t up = cluster->uplinks[source->host], down = cluster->uplinks[target->host];
		double other = cluster->hosts[target->host]->nic_latency;

		out->links[out->count++] = source->nic_out;
		if (up)
			out->links[out->count++] = up;
		if (down)
			out->links[out->count++] = down + 1;
		out->links[out->count++] = target->nic_out + 1;
		out->latency = 1e3 * (host->nic_latency > other ? host->nic_latency : other);
	}
}

const char *wh_link_text(const struct wh_cluster *cluster, uint32_t link, char *out, size_t size)
{
	static const char *const ways[] = { "out", "in", "copies", "out", "in", "out", "in" };
	const struct wh_link *said = &cluster->links[link];
	char what[32];

	if (said->kind == WH_LINK_ENGINE) {
		snprintf(out, size, "engine '%s', copies", cluster->nodes[said->number].name);
		return out;
	}
	if (said->kind >= WH_LINK_UPLINK_OUT)
		snprintf(what, sizeof(what), "uplink");
	else if (said->kind >= WH_LINK_NIC_OUT)
		snprintf(what, sizeof(what), "NIC %" PRId32, said->number);
	else if (said->number == WH_LAYOUT_NO_GPU)
		snprintf(what, sizeof(what), "memory");
	else
		snprintf(what, sizeof(what), "GPU %" PRId32, said->number);
	snprintf(out, size, "%s of host '%s', %s", what, cluster->hosts[said->host]->name.text,
		 ways[said->kind]);
	return out;
}
