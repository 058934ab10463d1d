# frozen_string_literal: true

# Sidekiq as Debian has it, in the fastest settings found: the hiredis driver if it is installed, YJIT, nothing logged.
#
# `REDIS_URL=redis://.. ruby --yjit peer.rb VERB ..` prints one line of JSON; the verbs are told in ../README.md.
# It takes a job out of Redis before it runs it: the job is lost if the worker is killed.

begin
  require "hiredis"
rescue LoadError
  # The plain driver does too.
end
require "io/wait"
require "json"
require "sidekiq"

# Jobs in one bulk push: what Sidekiq's own text recommends as the most.
BULK = 1_000
# Jobs at once in a worker that is measured idle.
IDLE_CONCURRENCY = 10
# Time between two jobs, from 10 to 110 ms: the worker is done with the last one and waits again, and one that looks now
# and then is met at any point of its turn.
STEP_S = ->(no) { (10 + (no * 37 % 100)) / 1_000.0 }
# From now to the first due moment. A worker that has just begun does not look for scheduled jobs for up to 15 s.
LEAD_S = 16
# Longest wait for a job after the last one is due.
PATIENCE_S = 30

NOOP = { "text" => "x" * (Integer(ENV.fetch("ARGS_BYTES", "200")) - '{"text":""}'.size) }.freeze

Sidekiq.logger.level = Logger::WARN
# Else the two Debian packages, one newer than the other, print a warning at each job.
Redis.silence_deprecations = true
Redis.sadd_returns_boolean = false
$stdout.sync = true

def monotonic_us = Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond)
def wall_us = Process.clock_gettime(Process::CLOCK_REALTIME, :microsecond)

# Counts no-ops, tells the start of the others.
class Noop
  include Sidekiq::Worker

  LOCK = Mutex.new
  OVER = Thread::Queue.new
  @ran = 0
  @wanted = nil

  class << self
    attr_accessor :wanted

    def one_more
      LOCK.synchronize { OVER << true if (@ran += 1) == @wanted }
    end
  end

  def perform(args)
    return self.class.one_more unless args.key?("no")

    $stdout.write("#{JSON.generate(no: args["no"], monotonic_us: monotonic_us, wall_us: wall_us)}\n")
    sleep args["hold_s"] if args["hold_s"].positive?
  end
end

# The verbs, and what they share.
module Peer
  module_function

  def told(no, hold_s) = { "no" => no, "hold_s" => hold_s, "text" => "" }

  # What the command `sidekiq` does, without its signals and its banner.
  def start_worker(concurrency)
    require "sidekiq/cli"
    require "sidekiq/launcher"
    options = Sidekiq.options.merge!(queues: ["default"], concurrency: concurrency)
    Sidekiq.redis = { url: ENV.fetch("REDIS_URL"), size: concurrency + 5 }
    Sidekiq::Launcher.new(options).run
  end

  # A worker in a process of its own, and the lines that it says.
  def spawn_worker
    said = IO.popen([RbConfig.ruby, "--yjit", "--yjit-exec-mem-size=32", __FILE__, "work", IDLE_CONCURRENCY.to_s])
    at_exit { Process.kill(:KILL, said.pid) }
    first = said.gets
    raise "the worker said #{first.inspect}" unless first == "ready\n"

    said
  end

  def rate(jobs, began_us)
    seconds = (monotonic_us - began_us) / 1e6
    { jobs: jobs, seconds: seconds, per_s: jobs / seconds }
  end

  # The smallest sample that at least so many percent do not exceed.
  def times(jobs, began_us, millis)
    millis.sort!
    percentile = ->(percent) { millis[[(percent / 100.0 * millis.size).ceil, 1].max - 1] }
    seconds = (monotonic_us - began_us) / 1e6
    { jobs: jobs, seconds: seconds, ran: millis.size, p50_ms: percentile[50], p99_ms: percentile[99], earliest_ms: millis[0] }
  end

  def rss_mb = File.read("/proc/self/status")[/VmHWM:\s+(\d+)/, 1].to_f / 1024

  def push(jobs)
    began = monotonic_us
    (0...jobs).each_slice(BULK) { |slice| Sidekiq::Client.push_bulk("class" => Noop, "args" => slice.map { [NOOP] }) }
    rate(jobs, began)
  end

  def push_one(jobs)
    began = monotonic_us
    jobs.times { Noop.perform_async(NOOP) }
    rate(jobs, began)
  end

  def drain(jobs, concurrency)
    Noop.wanted = jobs
    began = monotonic_us
    start_worker(concurrency)
    Noop::OVER.pop
    rate(jobs, began).merge(rss_mb: rss_mb)
  end

  def idle_latency(jobs)
    worker = spawn_worker
    millis = []
    began = monotonic_us
    # The first one pays for connections.
    (0..jobs).each do |no|
      sleep STEP_S[no]
      called = monotonic_us
      Noop.perform_async(told(no, 0))
      start = JSON.parse(worker.gets)
      raise "job #{start["no"]} started instead of #{no}" unless start["no"] == no

      millis << (start["monotonic_us"] - called) / 1_000.0 if no.positive?
    end
    times(jobs, began, millis)
  end

  def late(jobs, seconds)
    worker = spawn_worker
    began = monotonic_us
    first = Time.now.to_f + LEAD_S
    due = ->(no) { first + no * seconds / jobs.to_f }
    args = Array.new(jobs) { |no| [told(no, 0)] }
    Sidekiq::Client.push_bulk("class" => Noop, "args" => args, "at" => Array.new(jobs, &due))
    until_us = monotonic_us + ((LEAD_S + seconds + PATIENCE_S) * 1e6)
    millis = []
    while millis.size < jobs && worker.wait_readable((until_us - monotonic_us) / 1e6)
      start = JSON.parse(worker.gets)
      millis << (start["wall_us"] / 1_000.0) - (due[start["no"]] * 1_000)
    end
    times(jobs, began, millis)
  end

  def hold(jobs, seconds)
    began = monotonic_us
    jobs.times { |no| Noop.perform_async(told(no, seconds)) }
    rate(jobs, began)
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
# A worker would go on; nothing is left to be saved. Those that wait to end a child still have their turn.
exit
