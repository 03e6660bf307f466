/* A placement problem in flat arrays. problem.py explains the terms. "Nowhere" is host -1. */
#pragma once

#include <stdint.h>

enum { ROUTE_ANY = 0, ROUTE_ZONE = 1, ROUTE_NODE = 2 };
enum { RULE_SPREAD = 0, RULE_ANTI_AFFINITY = 1, RULE_AFFINITY = 2, RULE_PREFERENCE = 3 };
enum { COUNTED = 1, OWNER = 2 }; /* flags of a role: the rule counts the replica, the replica carries the rule */

typedef struct { int32_t edge, is_callee; } EdgeEnd; /* an edge of a workload, and whether the workload is its callee */

/* native_search.py has the fields in the same order. Every array is C-contiguous, and its owner keeps it until the search returns. */
typedef struct {
  int64_t hosts, resources, zones, classes, workloads, replicas, edges, tables, rules;
  const int64_t *free;            /* [host][resource] */
  const double *inverse_capacity; /* [host][resource] 1 / capacity, 0 without capacity */
  const int32_t *zone_of;         /* [host] */
  const uint8_t *has_zone_label;  /* [zone] whether its nodes carry the zone label */
  const double *host_price;       /* [host] cost of each replica on it */
  const int32_t *workload_of;     /* [class] */
  const int32_t *row_of;          /* [class] row of `allowed` */
  const uint8_t *allowed;         /* [row][host] */
  const int64_t *requests;        /* [class][resource] */
  const int32_t *class_of;        /* [replica] */
  const int64_t *member_start;    /* [workload + 1] into member */
  const int32_t *member;          /* replicas by workload */
  const int64_t *replica_count;   /* [workload] fixed replicas included */
  const uint8_t *must_span_zones; /* [workload] whether its replicas must not all be in one zone */
  const double *host_colocation_price, *zone_colocation_price; /* [workload] half the price of two replicas on one host, in one zone */
  const int64_t *fixed_start;     /* [workload + 1] into fixed_host */
  const int32_t *fixed_host;      /* host of each fixed replica */
  const int32_t *caller, *callee; /* [edge] workloads */
  const int32_t *routing;         /* [edge] ROUTE_... */
  const int32_t *table;           /* [edge] its table of costs and limits */
  const double *weight;           /* [edge] traffic of all callers together */
  const double *pair_weight;      /* [edge] traffic of one pair of caller and replica of the callee */
  const int64_t *edge_end_start;  /* [workload + 1] into edge_end */
  const EdgeEnd *edge_end;        /* edges by workload */
  const double *cost_between_hosts; /* [table][zone][zone] of a call between different hosts */
  const double *cost_within_host; /* [table] of a call within a host */
  const double *mean_detour;      /* [table][zone] mean extra cost of a call that leaves the zone */
  const uint8_t *violates_limit;  /* [table][zone][zone] whether the path exceeds the table's limit */
  const int32_t *rule_kind;       /* [rule] RULE_... */
  const int32_t *rule_max_skew;   /* [rule] */
  const uint8_t *rule_lacks_domains; /* [rule] whether there are fewer domains than minDomains: the minimum is 0 */
  const double *rule_price;       /* [rule] of preferences */
  const int32_t *domain_of;       /* [rule][host] or -1 */
  const int64_t *domain_start;    /* [rule + 1] into the next three */
  const int64_t *bound_counted, *bound_owners; /* bound pods that the rule counts, and that carry it */
  const uint8_t *counts_for_minimum;     /* whether a domain's count enters the minimum */
  const int64_t *role_start;      /* [class + 1] into role_rule, role */
  const int32_t *role_rule;
  const uint8_t *role;            /* COUNTED, OWNER or both */
  double limit_price, one_zone_price; /* of a pair beyond the table's limit, of a workload in one zone that must span zones */
  double overload_price, balance_price, crowding_price; /* see problem.py */
} Problem;

static inline int32_t zone_at(const Problem *problem, int32_t host) { return host < 0 ? -1 : problem->zone_of[host]; }
static inline int32_t domain_at(const Problem *problem, int64_t rule, int32_t host) {
  return host < 0 ? -1 : problem->domain_of[rule * problem->hosts + host];
}
static inline int is_allowed(const Problem *problem, int32_t class, int32_t host) {
  return problem->allowed[(int64_t)problem->row_of[class] * problem->hosts + host];
}
static inline int has_rules(const Problem *problem, int32_t class) { return problem->role_start[class] < problem->role_start[class + 1]; }

static inline const int64_t *requests_of(const Problem *problem, int32_t class) {
  return problem->requests + (int64_t)class * problem->resources;
}

/* Whether these free resources of a host suffice for a replica. An overcommitted resource matters only if it is requested. */
static inline int fits(const Problem *problem, int32_t class, const int64_t *host_free) {
  const int64_t *requests = requests_of(problem, class);
  for (int64_t resource = 0; resource < problem->resources; resource++)
    if (requests[resource] > 0 && host_free[resource] < requests[resource]) return 0;
  return 1;
}
