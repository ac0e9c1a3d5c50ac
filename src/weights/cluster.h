/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engines of two layouts, and the links between them.
 *
 * A node is an engine. One that both layouts name is one node, which holds slices and receives
 * some. Nodes at the same GPU, or in the memory of the same host, share a device. A link moves
 * bytes in one direction, at its rate:
 *   - of each device: out and in, to other devices of its host; and copy, within its memory;
 *   - of each engine in host memory whose host has such a rate: what it copies from others there;
 *   - of each NIC: out and in; of each host with an uplink rate: out and in.
 */
#ifndef WH_WEIGHTS_CLUSTER_H
#define WH_WEIGHTS_CLUSTER_H

#include "weights/layout.h"

enum wh_link_kind {
	WH_LINK_DEVICE_OUT,
	WH_LINK_DEVICE_IN,
	WH_LINK_COPY,
	WH_LINK_NIC_OUT,
	WH_LINK_NIC_IN,
	WH_LINK_UPLINK_OUT,
	WH_LINK_UPLINK_IN,
	WH_LINK_ENGINE,
};

struct wh_link {
	double rate; /* GB/s: bytes per ns */
	enum wh_link_kind kind;
	uint32_t host; /* cluster.hosts */
	int32_t number; /* of the GPU, NIC or node; WH_LAYOUT_NO_GPU: the host's memory */
};

struct wh_node {
	const char *name; /* of a layout */
	uint32_t host;
	uint32_t device; /* its links out, in, copy: 3 * device and the two behind it */
	uint32_t nic_out; /* a link; nic_out + 1 is in */
	uint32_t copies; /* a link; 0: there is none */
};

struct wh_cluster {
	struct wh_node *nodes;
	const struct wh_host **hosts;
	uint32_t *uplinks; /* of each host: the link out, in is behind it; 0: there is none */
	struct wh_link *links;
	uint32_t *of_engine[2]; /* the node of each engine of the two layouts */
	uint32_t node_count, host_count, device_count, link_count;
};

#define WH_PATH_LINKS 4

/* How bytes get from one node to another. */
struct wh_path {
	uint32_t links[WH_PATH_LINKS], count;
	double latency; /* ns */
};

/* Join the engines of two layouts, which must outlive it. 0, or -EINVAL (they say different things
 * of a host or an engine; the text has both), -ENOMEM. */
int wh_cluster_init(struct wh_cluster *cluster, const struct wh_layout *sources,
		    const struct wh_layout *targets);
void wh_cluster_free(struct wh_cluster *cluster);

void wh_cluster_path(const struct wh_cluster *cluster, uint32_t from, uint32_t to,
		     struct wh_path *out);

/* Write "GPU 3 of host 'a', out"; returns `out`. */
const char *wh_link_text(const struct wh_cluster *cluster, uint32_t link, char *out, size_t size);

#endif
