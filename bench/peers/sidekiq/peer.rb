# frozen_string_literal: true

# Sidekiq as packaged by Debian, in the fastest settings found: the hiredis driver if it is installed, YJIT, nothing logged.
#
# `REDIS_URL=redis://.. ruby --yjit peer.rb VERB ..` prints one line of JSON; ../README.md describes the verbs.
# Sidekiq removes a job from Redis before it runs the job: a killed worker loses it.

begin
  require "hiredis"
rescue LoadError
  # The plain driver works too.
end
require "io/wait"
require "json"
require "sidekiq"

# Jobs in one bulk push: the maximum that Sidekiq's documentation recommends.
BULK = 1_000
# The concurrency of a worker that is measured idle.
IDLE_CONCURRENCY = 10
# Pause between two jobs, 10 to 110 ms: the worker is idle again, and pushes hit every phase of a polling interval.
PAUSE_S = ->(no) { (10 + (no * 37 % 100)) / 1_000.0 }
# Delay of the first scheduled job. A new worker does not poll for scheduled jobs for up to 15 s.
LEAD_S = 16
# Longest wait for a start after the last job is due.
TIMEOUT_S = 30

NOOP = { "text" => "x" * (Integer(ENV.fetch("ARGS_BYTES", "200")) - '{"text":""}'.size) }.freeze

Sidekiq.logger.level = Logger::WARN
# Without these settings, the Debian packages, which do not match, print a warning for each job.
Redis.silence_deprecations = true
Redis.sadd_returns_boolean = false
$stdout.sync = true

def monotonic_us = Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond)
def wall_us = Process.clock_gettime(Process::CLOCK_REALTIME, :microsecond)

# Counts no-ops, and prints the start of other jobs.
class Noop
  include Sidekiq::Worker

  LOCK = Mutex.new
  ALL_DONE = Thread::Queue.new
  @ran = 0
  @wanted = nil

  class << self
    attr_accessor :wanted

    def count_run
      LOCK.synchronize { ALL_DONE << true if (@ran += 1) == @wanted }
    end
  end

  def perform(args)
    return self.class.count_run unless args.key?("no")

    $stdout.write("#{JSON.generate(no: args["no"], monotonic_us: monotonic_us, wall_us: wall_us)}\n")
    sleep args["hold_s"] if args["hold_s"].positive?
  end
end

# The verbs, and their shared code.
module Peer
  module_function

  def reporting_job(no, hold_s) = { "no" => no, "hold_s" => hold_s, "text" => "" }

  # Like the command `sidekiq`, without its signal handlers and its banner.
  def start_worker(concurrency)
    require "sidekiq/cli"
    require "sidekiq/launcher"
    options = Sidekiq.options.merge!(queues: ["default"], concurrency: concurrency)
    Sidekiq.redis = { url: ENV.fetch("REDIS_URL"), size: concurrency + 5 }
    Sidekiq::Launcher.new(options).run
  end

  # Starts a worker in another process and returns its output.
  def spawn_worker
    output = IO.popen([RbConfig.ruby, "--yjit", "--yjit-exec-mem-size=32", __FILE__, "work", IDLE_CONCURRENCY.to_s])
    at_exit { Process.kill(:KILL, output.pid) }
    first = output.gets
    raise "the worker printed #{first.inspect}" unless first == "ready\n"

    output
  end

  def rate(jobs, start_us)
    seconds = (monotonic_us - start_us) / 1e6
    { jobs: jobs, seconds: seconds, per_s: jobs / seconds }
  end

  # A percentile is the smallest sample that at least this percentage does not exceed.
  def latencies(jobs, start_us, millis)
    millis.sort!
    percentile = ->(percent) { millis[[(percent / 100.0 * millis.size).ceil, 1].max - 1] }
    seconds = (monotonic_us - start_us) / 1e6
    { jobs: jobs, seconds: seconds, ran: millis.size, p50_ms: percentile[50], p99_ms: percentile[99], earliest_ms: millis[0] }
  end

  def rss_mb = File.read("/proc/self/status")[/VmHWM:\s+(\d+)/, 1].to_f / 1024

  def push(jobs)
    start_us = monotonic_us
    (0...jobs).each_slice(BULK) { |slice| Sidekiq::Client.push_bulk("class" => Noop, "args" => slice.map { [NOOP] }) }
    rate(jobs, start_us)
  end

  def push_one(jobs)
    start_us = monotonic_us
    jobs.times { Noop.perform_async(NOOP) }
    rate(jobs, start_us)
  end

  def drain(jobs, concurrency)
    Noop.wanted = jobs
    start_us = monotonic_us
    start_worker(concurrency)
    Noop::ALL_DONE.pop
    rate(jobs, start_us).merge(rss_mb: rss_mb)
  end

  def idle_latency(jobs)
    worker = spawn_worker
    millis = []
    start_us = monotonic_us
    # The first job opens connections and does not count.
    (0..jobs).each do |no|
      sleep PAUSE_S[no]
      called = monotonic_us
      Noop.perform_async(reporting_job(no, 0))
      start = JSON.parse(worker.gets)
      raise "job #{start["no"]} started instead of #{no}" unless start["no"] == no

      millis << (start["monotonic_us"] - called) / 1_000.0 if no.positive?
    end
    latencies(jobs, start_us, millis)
  end

  def late(jobs, seconds)
    worker = spawn_worker
    start_us = monotonic_us
    first = Time.now.to_f + LEAD_S
    due = ->(no) { first + no * seconds / jobs.to_f }
    args = Array.new(jobs) { |no| [reporting_job(no, 0)] }
    Sidekiq::Client.push_bulk("class" => Noop, "args" => args, "at" => Array.new(jobs, &due))
    until_us = monotonic_us + ((LEAD_S + seconds + TIMEOUT_S) * 1e6)
    millis = []
    while millis.size < jobs && worker.wait_readable((until_us - monotonic_us) / 1e6)
      start = JSON.parse(worker.gets)
      millis << (start["wall_us"] / 1_000.0) - (due[start["no"]] * 1_000)
    end
    latencies(jobs, start_us, millis)
  end

  def hold(jobs, seconds)
    start_us = monotonic_us
    jobs.times { |no| Noop.perform_async(reporting_job(no, seconds)) }
    rate(jobs, start_us)
  end

  def work(concurrency)
    start_worker(concurrency)
    sleep 0.5
    puts "ready"
    sleep
  end
end

VERBS = %w[push push-one drain idle-latency late hold work].freeze
verb, *numbers = ARGV
abort "usage: REDIS_URL=.. ruby --yjit peer.rb #{VERBS.join(" | ")}" unless ENV.key?("REDIS_URL") && VERBS.include?(verb)
figures = Peer.send(verb.tr("-", "_"), *numbers.map { |number| Integer(number) })
puts JSON.generate({ peer: "Sidekiq #{Sidekiq::VERSION}" }.merge(figures))
# A worker would continue; no data is left to be saved. `at_exit` blocks still run and kill the child.
exit
