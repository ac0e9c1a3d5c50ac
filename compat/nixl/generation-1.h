/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between NIXL and its backends, generation 1: NIXL 1.0.0 to 1.5.1.
 *
 * NIXL calls a backend through a table of virtual functions and reads members of its objects by
 * their offsets. So the order of the functions and the types of the members below are an ABI,
 * although NIXL's own version of the plug-in interface (1) does not change with it. Names mean
 * nothing to NIXL. Source: src/api/cpp of github.com/ai-dynamo/nixl; checked against its wheels by
 * tests/nixl (the table of each wheel's own plug-in, and calls of every function).
 *
 * Another generation is another header, with the namespace of its number, and one more line in
 * version.c. C++ because the interface is.
 */
#ifndef WH_COMPAT_NIXL_GENERATION_H
#define WH_COMPAT_NIXL_GENERATION_H

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nixl1
{

enum Memory : int { MEMORY_DRAM, MEMORY_VRAM, MEMORY_BLOCK, MEMORY_OBJECT, MEMORY_FILE };
enum Operation : int { OPERATION_READ, OPERATION_WRITE };
enum Cost : int { COST_ANALYTICAL };
using Status = int; /* enum wh_nixl_status of adapter.h */

using Memories = std::vector<Memory>;
using Options = std::unordered_map<std::string, std::string>;
/* Pairs of the sending agent's name and the message. */
using Notifications = std::vector<std::pair<std::string, std::string>>;

/* ---- descriptors ----------------------------------------------------------------------------- */

struct Metadata {
	bool is_private;

	explicit Metadata(bool is_private) : is_private(is_private)
	{
	}
	virtual ~Metadata() = default;
};

struct Descriptor {
	uintptr_t address;
	size_t length; /* bytes */
	uint64_t device; /* VRAM: the number of the GPU */
};

struct RegistrationDescriptor : Descriptor {
	std::string metadata;
};

struct TransferDescriptor : Descriptor {
	Metadata *metadata;
};

struct RemoteDescriptor : TransferDescriptor {
	std::string agent;
};

/* NIXL creates the lists; the plug-in only reads them. */
template <class T> struct List {
	virtual ~List() = default;
	virtual void resize(const size_t &count) = 0;
	virtual void add(const T &descriptor) = 0;
	virtual int find(const Descriptor &query) const = 0;

	Memory memory;
	std::vector<T> descriptors;
};

using TransferList = List<TransferDescriptor>;
using RemoteList = List<RemoteDescriptor>;
using RegistrationList = List<RegistrationDescriptor>;

/* ---- requests -------------------------------------------------------------------------------- */

struct Request {
	virtual ~Request() = default;
};

struct TransferOptions {
	std::string notification;
	bool has_notification;
	std::string custom;
};

/* ---- the backend ------------------------------------------------------------------------------
 */

struct InitParameters {
	std::string agent; /* the local agent's name */
	std::string type; /* the name by which the backend was asked for */
	Options *options;
	bool progress_thread;
	uint64_t progress_delay; /* us */
	int synchronisation;
	bool telemetry;
};

class Backend
{
	/* NIXL reads these members. */
	std::string type;
	Options options;
	std::vector<char> telemetry_events; /* of another type there; this plug-in adds none */
	std::mutex telemetry_lock;

      protected:
	bool failed = false; /* NIXL destroys a backend that says so after its construction */
	const std::string agent;
	const bool telemetry;

      public:
	explicit Backend(const InitParameters &given)
	    : type(given.type), options(*given.options), agent(given.agent),
	      telemetry(given.telemetry)
	{
	}
	Backend(const Backend &) = delete;
	Backend &operator=(const Backend &) = delete;
	virtual ~Backend() = default;

	virtual bool supports_remote() const = 0;
	virtual bool supports_local() const = 0;
	virtual bool supports_notifications() const = 0;
	virtual Memories memories() const = 0;

	virtual Status register_memory(const RegistrationDescriptor &memory, const Memory &kind,
				       Metadata *&out) = 0;
	virtual Status unregister_memory(Metadata *memory) = 0;
	virtual Status connect(const std::string &agent) = 0;
	virtual Status disconnect(const std::string &agent) = 0;
	virtual Status unload(Metadata *memory) = 0;

	virtual Status prepare(const Operation &operation, const TransferList &local,
			       const TransferList &remote, const std::string &agent, Request *&out,
			       const TransferOptions *options) const = 0;
	virtual Status post(const Operation &operation, const TransferList &local,
			    const TransferList &remote, const std::string &agent, Request *&request,
			    const TransferOptions *options) const = 0;
	virtual Status check(Request *request) const = 0;
	virtual Status release(Request *request) const = 0;

	virtual Status prepare_view(const RemoteList &list, void *&view,
				    const TransferOptions *options) const = 0;
	virtual Status prepare_view(const TransferList &list, void *&view,
				    const TransferOptions *options) const = 0;
	virtual void release_view(void *view) const = 0;

	virtual Status public_metadata(const Metadata *memory, std::string &out) const = 0;
	virtual Status connection_info(std::string &out) const = 0;
	virtual Status load_connection_info(const std::string &agent, const std::string &info) = 0;
	virtual Status load_remote(const RegistrationDescriptor &memory, const Memory &kind,
				   const std::string &agent, Metadata *&out) = 0;
	virtual Status load_local(Metadata *memory, Metadata *&out) = 0;
	virtual Status notifications(Notifications &out) = 0;
	virtual Status notify(const std::string &agent, const std::string &message) const = 0;

	virtual Status query(const RegistrationList &list,
			     std::vector<std::optional<Options>> &out) const = 0;
	virtual Status estimate(const Operation &operation, const TransferList &local,
				const TransferList &remote, const std::string &agent,
				Request *const &request, std::chrono::microseconds &duration,
				std::chrono::microseconds &error, Cost &method,
				const void *options) const = 0;
};

/* What nixl_plugin_init() returns. */
struct Plugin {
	int version; /* of the plug-in interface: 1 */
	Backend *(*create)(const InitParameters *given);
	void (*destroy)(Backend *backend);
	const char *(*name)();
	const char *(*plugin_version)();
	Options (*options)();
	Memories (*memories)();
};

} // namespace nixl1

#endif
