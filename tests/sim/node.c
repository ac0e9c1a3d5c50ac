/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts, and the nodes that are the processes on them. */
#include "world.h"

#define NODES 4096

static struct node nodes[NODES];
static int count;
static int newest[SIM_HOSTS]; /* plus one; 0: none */
static bool power_failed[SIM_HOSTS];
static unsigned boots[SIM_HOSTS];

int sim_node_new(int host)
{
	if (count == NODES)
		sim_die("more than %d nodes", NODES);
	boots[host] += power_failed[host];
	nodes[count] = (struct node){
		.host = host, .boot = boots[host], .alive = true, .next_port = 40000
	};
	power_failed[host] = false;
	newest[host] = ++count;
	return count - 1;
}

struct node *node_of(int id)
{
	return &nodes[id];
}

int node_count(void)
{
	return count;
}

int node_self(void)
{
	return sim_current ? sim_current->node : -1;
}

int node_at(int host)
{
	return host >= 0 && host < SIM_HOSTS ? newest[host] - 1 : -1;
}

bool node_is_down(int host)
{
	return power_failed[host];
}

void node_changed(int id)
{
	if (id >= 0)
		nodes[id].version++;
}

bool node_lacks_descriptors(void)
{
	int node = node_self();

	return node >= 0 && nodes[node].descriptors_until > sim_time &&
	       sim_chance(nodes[node].descriptors_fail);
}

int sim_node_mappings(int node)
{
	return nodes[node].mappings;
}

/* Others on the host may watch its pidfd. */
static void host_changed(int host)
{
	for (int i = 0; i < count; i++)
		if (nodes[i].host == host)
			node_changed(i);
}

void sim_node_exit(int node)
{
	nodes[node].exited = true;
	host_changed(nodes[node].host);
}

int sim_node_self(void)
{
	return node_self();
}

int sim_node_host(int node)
{
	return nodes[node].host;
}

int sim_node_descriptors(int node)
{
	return nodes[node].descriptors;
}

bool sim_node_is_stalled(int node)
{
	return nodes[node].stalled_until > sim_time;
}

int64_t sim_node_stalled(int node)
{
	return nodes[node].stalled_total;
}

void sim_node_stall(int node, int64_t ns)
{
	if (nodes[node].stalled_until > sim_time)
		return;
	nodes[node].stalled_until = sim_time + ns;
	nodes[node].stalled_total += ns;
}

void sim_node_short_descriptors(int node, int64_t ns)
{
	nodes[node].descriptors_until = sim_time + ns;
	/* What fails each time is tried for ever by who does not wait. */
	nodes[node].descriptors_fail = sim_draw_chaos(2) ? 700 : 1000;
}

void sim_node_no_descriptors(int node, int64_t ns)
{
	nodes[node].descriptors_until = sim_time + ns;
	nodes[node].descriptors_fail = 1000;
}

void sim_node_short_memory(int node, int64_t ns)
{
	nodes[node].memory_until = sim_time + ns;
}

void sim_node_fail_size(int node, size_t size)
{
	nodes[node].failing_size = size;
}

void sim_node_fail_allocation(int node, uint64_t nth)
{
	nodes[node].failing_allocation = nodes[node].allocations + nth;
}

void sim_node_crash(int node, bool silent)
{
	/* First what others see of its death in memory, then it loses the memory. */
	threads_crash(node);
	shared_crash(node);
	local_crash(node);
	gpu_crash(node);
	network_crash(node, silent);
	nodes[node].alive = false;
	nodes[node].stalled_until = 0;
	power_failed[nodes[node].host] |= silent;
	if (silent)
		disk_lose_power(nodes[node].host);
	host_changed(nodes[node].host);
	sim_trace("# node %d crashes%s", node, silent ? " silently" : "");
}

/* Every host runs again, with descriptors and memory enough. */
static void nodes_heal(void)
{
	for (int i = 0; i < count; i++) {
		struct node *node = &nodes[i];

		node->descriptors_until = node->memory_until = 0;
		node->failing_allocation = 0;
		if (node->stalled_until <= sim_time)
			continue;
		node->stalled_total -= node->stalled_until - sim_time;
		node->stalled_until = 0;
	}
}

void sim_heal(void)
{
	nodes_heal();
	disk_heal();
	sim_network_heal();
	sim_nic_heal();
	sim_gpu_heal();
	sim_registry_heal();
	sim_trace("# all is healed");
}
