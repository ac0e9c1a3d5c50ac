/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libplugin_WHERRY.so: takes NIXL's C++ objects apart and calls adapter.h. The interface is in
 * generation-1.h; what the functions mean is with NIXL's nixlBackendEngine.
 *
 * No exception leaves a function: NIXL catches none.
 */
#include <exception>
#include <new>

#include <wherry/wherry.h>

#include "compat/nixl/adapter.h"
#include "compat/nixl/generation-1.h"

using namespace nixl1;

namespace
{

static_assert(sizeof(TransferDescriptor) == sizeof(wh_nixl_descriptor),
	      "adapter.h reads NIXL's lists as they are");

struct Handle final : Metadata {
	wh_nixl_memory *memory = nullptr;
	bool local;

	explicit Handle(bool local) : Metadata(local), local(local)
	{
	}
};

struct Transfer final : Request {
	wh_nixl_request *request = nullptr;
};

/* Run `body`, which returns a status and may run out of memory. */
template <class Body> Status guarded(Body body)
{
	try {
		return body();
	} catch (const std::exception &) {
		return WH_NIXL_BACKEND;
	}
}

wh_nixl_list list_of(const TransferList &list)
{
	static const Handle example{ false };
	wh_nixl_list out;

	out.descriptors = reinterpret_cast<const wh_nixl_descriptor *>(list.descriptors.data());
	out.count = list.descriptors.size();
	out.memory_offset = reinterpret_cast<uintptr_t>(&example.memory) -
			    reinterpret_cast<uintptr_t>(static_cast<const Metadata *>(&example));
	return out;
}

class Wherry final : public Backend
{
	wh_nixl_agent *opened = nullptr;

	/* Make a handle, and let `fill` set its memory. */
	template <class Fill> static Status handle_new(bool local, Metadata *&out, Fill fill)
	{
		auto *handle = new (std::nothrow) Handle(local);
		Status status = handle ? fill(&handle->memory) : Status(WH_NIXL_BACKEND);

		if (status)
			delete handle;
		else
			out = handle;
		return status;
	}

      public:
	explicit Wherry(const InitParameters &given) : Backend(given)
	{
		std::vector<wh_nixl_option> settings;

		for (const auto &[name, value] : *given.options)
			settings.push_back({ name.c_str(), value.c_str() });
		failed = wh_nixl_agent_open(agent.data(), agent.size(), settings.data(),
					    settings.size(), given.type != "WHERRY", &opened);
	}

	~Wherry() override
	{
		if (opened)
			wh_nixl_agent_close(opened);
	}

	bool supports_remote() const override
	{
		return true;
	}
	bool supports_local() const override
	{
		return true;
	}
	bool supports_notifications() const override
	{
		return true;
	}
	Memories memories() const override
	{
		return { MEMORY_DRAM, MEMORY_VRAM };
	}

	/* ---- memory -------------------------------------------------------------------------- */

	Status register_memory(const RegistrationDescriptor &memory, const Memory &kind,
			       Metadata *&out) override
	{
		int gpu = kind == MEMORY_VRAM ? static_cast<int>(memory.device) : -1;

		if (kind != MEMORY_VRAM && kind != MEMORY_DRAM)
			return WH_NIXL_NOT_SUPPORTED;
		return handle_new(true, out, [&](wh_nixl_memory **to) {
			return wh_nixl_memory_register(opened, memory.address, memory.length, gpu,
						       to);
		});
	}

	Status unregister_memory(Metadata *memory) override
	{
		auto *handle = static_cast<Handle *>(memory);
		Status status = wh_nixl_memory_unregister(handle->memory);

		delete handle;
		return status;
	}

	Status public_metadata(const Metadata *memory, std::string &out) const override
	{
		return guarded([&] {
			char key[WH_KEY_MAX];
			size_t length;
			Status status = wh_nixl_memory_key(
				static_cast<const Handle *>(memory)->memory, key, &length);

			if (!status)
				out.assign(key, length);
			return status;
		});
	}

	Status load_remote(const RegistrationDescriptor &memory, const Memory &,
			   const std::string &name, Metadata *&out) override
	{
		return handle_new(false, out, [&](wh_nixl_memory **to) {
			return wh_nixl_memory_load(opened, name.data(), name.size(),
						   memory.metadata.data(), memory.metadata.size(),
						   to);
		});
	}

	Status load_local(Metadata *memory, Metadata *&out) override
	{
		return handle_new(false, out, [&](wh_nixl_memory **to) {
			return wh_nixl_memory_load_local(static_cast<Handle *>(memory)->memory, to);
		});
	}

	Status unload(Metadata *memory) override
	{
		auto *handle = static_cast<Handle *>(memory);

		if (!handle)
			return WH_NIXL_OK;
		wh_nixl_memory_unload(handle->memory);
		delete handle;
		return WH_NIXL_OK;
	}

	Status query(const RegistrationList &list,
		     std::vector<std::optional<Options>> &out) const override
	{
		return guarded([&] {
			out.clear();
			for (const auto &descriptor : list.descriptors) {
				wh_nixl_found found;

				if (!wh_nixl_memory_query(opened, descriptor.address, &found)) {
					out.emplace_back();
					continue;
				}
				out.emplace_back(Options{
					{ "kind", found.kind },
					{ "gpu", found.gpu < 0 ? "" : std::to_string(found.gpu) },
					{ "base", std::to_string(found.base) },
					{ "length", std::to_string(found.length) } });
			}
			return WH_NIXL_OK;
		});
	}

	/* ---- peers --------------------------------------------------------------------------- */

	Status connection_info(std::string &out) const override
	{
		return guarded([&] {
			const char *text;
			size_t length;
			Status status = wh_nixl_agent_info(opened, &text, &length);

			if (!status)
				out.assign(text, length);
			return status;
		});
	}

	Status load_connection_info(const std::string &name, const std::string &info) override
	{
		return wh_nixl_peer_load(opened, name.data(), name.size(), info.data(), info.size());
	}

	Status connect(const std::string &name) override
	{
		return wh_nixl_peer_connect(opened, name.data(), name.size());
	}

	Status disconnect(const std::string &name) override
	{
		return wh_nixl_peer_disconnect(opened, name.data(), name.size());
	}

	/* ---- transfers ----------------------------------------------------------------------- */

	Status prepare(const Operation &operation, const TransferList &local,
		       const TransferList &remote, const std::string &name, Request *&out,
		       const TransferOptions *options) const override
	{
		auto *transfer = new (std::nothrow) Transfer;
		wh_nixl_list here = list_of(local), there = list_of(remote);
		Status status;

		if (!transfer)
			return WH_NIXL_BACKEND;
		status = wh_nixl_request_prepare(opened, operation == OPERATION_WRITE,
						 options && options->has_notification, &here, &there,
						 name.data(), name.size(), &transfer->request);
		if (status)
			delete transfer;
		else
			out = transfer;
		return status;
	}

	Status post(const Operation &, const TransferList &, const TransferList &,
		    const std::string &, Request *&request,
		    const TransferOptions *options) const override
	{
		bool notifies = options && options->has_notification;

		return wh_nixl_request_post(static_cast<Transfer *>(request)->request,
					    notifies ? options->notification.data() : nullptr,
					    notifies ? options->notification.size() : 0);
	}

	Status check(Request *request) const override
	{
		return wh_nixl_request_check(static_cast<Transfer *>(request)->request);
	}

	Status release(Request *request) const override
	{
		auto *transfer = static_cast<Transfer *>(request);
		Status status = wh_nixl_request_release(transfer->request);

		delete transfer;
		return status;
	}

	Status estimate(const Operation &, const TransferList &, const TransferList &,
			const std::string &, Request *const &request,
			std::chrono::microseconds &duration, std::chrono::microseconds &error,
			Cost &method, const void *) const override
	{
		uint64_t expected;
		Status status = wh_nixl_request_estimate(static_cast<Transfer *>(request)->request,
							 &expected);

		if (status)
			return status;
		duration = std::chrono::microseconds(expected);
		error = duration / 2; /* Wherry's estimates have no margin of their own */
		method = COST_ANALYTICAL;
		return WH_NIXL_OK;
	}

	/* ---- notifications ------------------------------------------------------------------- */

	Status notifications(Notifications &out) override
	{
		return guarded([&] {
			return wh_nixl_notifications(
				opened,
				[](void *to, const char *sender, size_t sender_length,
				   const char *message, size_t length) noexcept {
					static_cast<Notifications *>(to)->emplace_back(
						std::string(sender, sender_length),
						std::string(message, length));
				},
				&out);
		});
	}

	Status notify(const std::string &name, const std::string &message) const override
	{
		return wh_nixl_notify(opened, name.data(), name.size(), message.data(),
				      message.size());
	}

	/* ---- views, for GPUs that start transfers themselves ---------------------------------- */

	Status prepare_view(const RemoteList &, void *&, const TransferOptions *) const override
	{
		return WH_NIXL_NOT_SUPPORTED;
	}
	Status prepare_view(const TransferList &, void *&, const TransferOptions *) const override
	{
		return WH_NIXL_NOT_SUPPORTED;
	}
	void release_view(void *) const override
	{
	}
};

Backend *create(const InitParameters *given)
{
	try {
		return new Wherry(*given);
	} catch (const std::exception &) {
		return nullptr;
	}
}

void destroy(Backend *backend)
{
	delete backend;
}

const char *name()
{
	return wh_nixl_plugin_name(reinterpret_cast<const void *>(&create));
}

Options options()
{
	Options all;
	const struct wh_config_row *row;

	for (size_t i = 0; (row = wh_config_row(i)); i++)
		all.emplace(row->name, row->fallback);
	return all;
}

Memories memories()
{
	return { MEMORY_DRAM, MEMORY_VRAM };
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) Plugin *nixl_plugin_init()
{
	static Plugin plugin = { 1, create, destroy, name, wh_version, options, memories };

	return wh_nixl_is_known(__builtin_return_address(0)) ? &plugin : nullptr;
}

__attribute__((visibility("default"))) void nixl_plugin_fini()
{
}
}
