/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to hosts and the network, as often as the options say. */
#include <stdio.h>
#include <stdlib.h>

#include "program.h"

#define STEP_MS 10

static bool due(int mean_ms)
{
	return mean_ms > 0 && !sim_draw_chaos((uint64_t)mean_ms / STEP_MS);
}

static int64_t duration(void)
{
	static const int64_t most[] = { 20 * SIM_MS, 300 * SIM_MS, 3 * SIM_SEC, 12 * SIM_SEC,
					40 * SIM_SEC };

	return 1 + (int64_t)sim_draw_chaos((uint64_t)most[sim_draw_chaos(5)]);
}

static int any_place(void)
{
	return (int)sim_draw_chaos((uint64_t)place_count());
}

static int any_host(void)
{
	return (int)sim_draw_chaos((uint64_t)program_hosts());
}

static void network_fault(void)
{
	if (due(sim_options.cut)) {
		int a = any_host(), b = any_host();
		int64_t ns = duration();

		sim_trace("# cut %d -> %d for %.3f s", a, b, (double)ns / 1e9);
		sim_network_cut(a, b, ns);
		if (sim_draw_chaos(2))
			sim_network_cut(b, a, ns);
	}
	if (due(sim_options.reset))
		sim_network_reset_one();
	if (due(sim_options.black))
		sim_network_black_one(sim_draw_chaos(3) ? duration() : INT64_MAX);
	if (due(sim_options.slow))
		sim_network_slow(duration(), 2 + (int)sim_draw_chaos(50));
}

static void port_up(void *arg)
{
	const int *which = arg;

	sim_nic_port(which[0], which[1], true);
	free(arg);
}

static void nic_fault(void)
{
	int host = any_host(), index = (int)sim_draw_chaos((uint64_t)sim_options.rdma);

	if (due(sim_options.nic_port)) {
		int *which = malloc(2 * sizeof(*which));

		which[0] = host;
		which[1] = index;
		sim_nic_port(host, index, false);
		sim_after(duration(), port_up, which);
	}
	if (due(sim_options.nic_black))
		sim_nic_black(host, index, duration());
}

static void gpu_fault(void)
{
	if (due(sim_options.gpu_stalls))
		sim_gpu_stall(any_host(), (int)sim_draw_chaos((uint64_t)sim_options.gpus),
			      duration() / 20);
}

static void host_fault(void)
{
	struct program *program = program_at_place(any_place());
	bool power = sim_options.folders && due(sim_options.power);

	if (!program)
		return;
	if (due(sim_options.stall)) {
		int64_t ns = duration();

		sim_trace("# node %d stands still for %.3f s", program->node, (double)ns / 1e9);
		sim_node_stall(program->node, ns);
	}
	if (due(sim_options.disk_hangs))
		sim_disk_hang(place_host(program->place), duration());
	if (due(sim_options.short_descriptors))
		sim_node_short_descriptors(program->node, duration());
	if (due(sim_options.short_memory))
		sim_node_short_memory(program->node, duration());
	if (due(sim_options.restart))
		program->leaving = true;
	if (power || due(sim_options.crash)) {
		unsigned crashed = program_crash(program, power || sim_draw_chaos(2));

		sim_sleep((int64_t)sim_draw_chaos(4 * SIM_SEC));
		for (int i = 0; i < place_count(); i++)
			if (crashed & 1u << i)
				program_new(i);
	}
}

static void check_waiters(void)
{
	for (int i = 0; i < program_count(); i++)
		for (int j = 0; j < PROGRAM_BATCHES && !program_at(i)->crashed; j++)
			batch_check_waiters(&program_at(i)->batches[j]);
}

static void registry_fault(void)
{
	uint64_t what = sim_draw_chaos(5);

	if (what == 0)
		sim_registry_down(duration());
	else if (what == 1)
		sim_registry_forget();
	else
		sim_registry_cut(any_host(), duration());
}

void *chaos_main(void *arg)
{
	int64_t end = sim_time + sim_options.span_ms * SIM_MS;

	(void)arg;
	while (sim_time < end) {
		sim_sleep(STEP_MS * SIM_MS);
		network_fault();
		if (sim_options.rdma)
			nic_fault();
		if (sim_options.gpus)
			gpu_fault();
		host_fault();
		check_waiters();
		if (sim_options.registry && due(sim_options.registry_faults))
			registry_fault();
	}
	swarm_heal();
	sim_heal();
	program_healed_at = sim_time;
	program_phase = PHASE_DRAIN;
	return NULL;
}
